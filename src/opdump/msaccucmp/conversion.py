"""Converts one dump file, with and without `-f`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpFile, DumpTensor
from opdump.msaccucmp.dump_source import OPDEBUG_PREFIX, read_source
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.ffts import slices_of
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.original_elements import check_data_type, decode, dtype_in_name, original_shape_of
from opdump.msaccucmp.original_formats import (
    Stored,
    can_convert,
    check_nz_shape,
    convert_format,
    effective_format,
    format_of,
    slice_to,
)
from opdump.msaccucmp.output_folder import OutputFolder, npy_parts, pt_parts, raw_parts

OutputType = Literal["npy", "bin", "msnpy", "pt"]
_L1: Final = 0
_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run. `script_folder` is that of `-c`; `shape` that of `-s`."""

    output: OutputFolder
    kind: OutputType = "npy"
    target: str = ""
    shape: tuple[int, ...] = ()
    input_index: int | None = None
    output_index: int | None = None
    script_folder: str = ""


@dataclass(slots=True)
class Outcome:
    """The result for one file: the code of the last failure, and the tensors that failed."""

    path: str
    code: ExitCode = ExitCode.OK
    failed: list[str] = field(default_factory=list)


def convert_file(path: str, settings: Settings, scripts: Mapping[tuple[str, str], Any]) -> Outcome:
    """Convert one file. Raises CommandError if all of it fails, AbortError if the original ends the whole run."""
    file = read_source(path)
    name = os.path.basename(path)
    if settings.target:
        return _Reformatted(path, name, _checked(name, file), settings, scripts).run()
    if name.startswith(OPDEBUG_PREFIX):
        from opdump.msaccucmp.opdebug_files import convert_opdebug

        convert_opdebug(path, file, settings.output)
        return Outcome(path)
    write_plainly(path, name, _checked(name, file), settings)
    return Outcome(path)


def read_converted(path: str) -> DumpFile:
    """The file with the shapes used for conversion. Raises CommandError and AbortError like `convert_file`."""
    return _checked(os.path.basename(path), read_source(path))


def _checked(name: str, file: DumpFile) -> DumpFile:
    for tensor in (*file.outputs, *file.inputs):
        check_data_type(tensor)
    return slices_of(name, file)


def write_plainly(path: str, name: str, file: DumpFile, settings: Settings) -> None:
    """Write the tensors, buffers and spaces of a file without `-f`. Raises AbortError."""
    decoded = [(tensor, decode(tensor)) for tensor in file.tensors]
    for io, present in (("input", file.inputs), ("output", file.outputs)):
        if not present:
            log("WARNING", f"{path} has no {io}")
        for tensor, array in decoded:
            if tensor.io == io:
                log("INFO", f"{tensor.name} of {path} is being converted")
                _save_plainly(name, file, tensor, array, settings)
    for slot, buffer in enumerate(file.buffers):
        kind = "l1" if buffer.kind == _L1 else "None"
        _save(settings.output, f"{name}.{kind}buffer.{slot}.bin", [buffer.data.read()], f"buffer:{slot}")
    if not file.buffers:
        log("WARNING", f"{path} has no buffer data")
    for slot, space in enumerate(file.spaces):
        _save(settings.output, f"{name}.space.{slot}.bin", [space.data.read()], f"space:{slot}")
    if not file.spaces:
        log("WARNING", f"{path} has no space data")


def _save_plainly(name: str, file: DumpFile, tensor: DumpTensor, array: _Array, settings: Settings) -> None:
    stem = f"{tensor.io}.{tensor.slot}"
    if settings.kind == "bin":
        counts = "_".join(str(size) for size in array.shape)
        target = f"{name}.{stem}.{counts}.{dtype_in_name(tensor.data_type)}.{format_of(tensor.format)}.bin"
    elif settings.kind == "msnpy":
        target = f"{_msnpy_base(name, file)}.{stem}.{format_of(tensor.format)}.npy"
    else:
        target = f"{name}.{stem}.{settings.kind}"
    shape = original_shape_of(tensor)
    if shape:
        try:
            array = array.reshape(shape)
        except (ValueError, OverflowError) as error:
            log("ERROR", f"{target} cannot be written: {error}")
            log("INFO", f"{tensor.name} has been converted to {os.path.join(settings.output.path, target)}")
            return
    if settings.kind == "pt":
        _save(settings.output, target, pt_parts(array), tensor.name)
    else:
        _save(settings.output, target, raw_parts(array) if settings.kind == "bin" else npy_parts(array), tensor.name)


def _save(output: OutputFolder, name: str, parts: Iterable[bytes | memoryview], what: str) -> None:
    """Write the parts. A failure is only logged, as in the original, which then reports success."""
    written = os.path.join(output.path, name)
    try:
        written = output.write(name, parts)
    except (OSError, ValueError) as error:
        log("ERROR", f"{written} cannot be written: {error}")
    log("INFO", f"{what} has been converted to {written}")


def _msnpy_base(name: str, file: DumpFile) -> str:
    """The file's name; if it has five parts, the second is replaced by the last part of the operator's true name."""
    parts = name.split(".")
    if len(parts) == 5 and file.op_name:
        parts[1] = file.op_name.split("/")[-1]
    return ".".join(parts)


class _TensorError(AbortError):
    """An exception that ends one tensor with exit code 1, but not the run."""


class _Reformatted:
    """`convert -f`: the tensors of one file, each in the target format."""

    def __init__(
        self, path: str, name: str, file: DumpFile, settings: Settings, scripts: Mapping[tuple[str, str], Any]
    ) -> None:
        self.path = path
        self.name = name
        self.file = file
        self.settings = settings
        self.scripts = scripts
        self.outcome = Outcome(path)
        self.decoded: dict[str, _Array] = {}

    def run(self) -> Outcome:
        log("INFO", f"{self.path}: converting to {self.settings.target}")
        self.decoded = {tensor.name: decode(tensor) for tensor in self.file.tensors}
        for tensor in self._chosen():
            self._attempt(tensor)
        return self.outcome

    def _attempt(self, tensor: DumpTensor) -> None:
        """Convert one tensor; a failure is recorded and does not stop the others."""
        try:
            self._convert(tensor)
        except (CommandError, _TensorError) as error:
            log("ERROR", f"{tensor.name} of {self.path} cannot be converted: {error}")
            self.outcome.code = error.code if isinstance(error, CommandError) else ExitCode.UNEXPECTED
            self.outcome.failed.append(tensor.name)
            if self.settings.kind == "msnpy":
                self._save_source(tensor)

    def _chosen(self) -> Iterable[DumpTensor]:
        for io, index, tensors in (
            ("input", self.settings.input_index, self.file.inputs),
            ("output", self.settings.output_index, self.file.outputs),
        ):
            if index is None:
                continue
            if index >= len(tensors):
                raise CommandError(
                    ExitCode.BAD_INDEX,
                    f"{self.path} has {len(tensors)} {io}s; {index} is none of them (they count from 0)",
                )
            return (tensors[index],)
        return self.file.tensors

    def _convert(self, tensor: DumpTensor) -> None:
        settings = self.settings
        named = format_of(tensor.format)
        shape = original_shape_of(tensor)
        source = effective_format(named, shape)
        if source != named:
            log("WARNING", f"{tensor.name} of {self.path} is {named} with the shape {shape}; it is taken for ND")
        log("INFO", f"{tensor.name} is {source}{shape} before the conversion")
        array = self.decoded[tensor.name]
        if source == settings.target:
            try:
                result = array.reshape(shape)
            except (ValueError, OverflowError) as error:
                raise CommandError(ExitCode.BAD_DUMP, f"{array.size} elements do not have the shape {shape}") from error
        else:
            wanted = settings.shape or tensor.original_shape
            result = self._converted(source, shape, wanted, tensor, array)
            try:
                result = slice_to(result, wanted)
            except CommandError as error:
                log("ERROR", f"{tensor.name} of {self.path} is left as it is: {error}")
                self._save(tensor, result, source)  # the data are in the target format all the same
                return
        self._save(tensor, result, settings.target)

    def _converted(
        self, source: str, shape: tuple[int, ...], wanted: tuple[int, ...], tensor: DumpTensor, array: _Array
    ) -> _Array:
        target = self.settings.target
        script = self.scripts.get((source, target))
        if script is None and not can_convert(source, target):
            raise CommandError(ExitCode.BAD_FORMAT_PAIR, f"there is no conversion from {source} to {target}")
        if source == "FRACTAL_NZ":
            check_nz_shape(shape, wanted)
        stored = Stored(shape, wanted, tensor.sub_format)
        try:
            if script is not None:
                from opdump.msaccucmp.custom_scripts import run_script

                result = run_script(script, source, target, array, stored)
            else:
                result = convert_format(source, target, array, stored)
        except CommandError:
            raise
        except Exception as error:
            raise CommandError(
                ExitCode.SCRIPT_FAILED,
                f"the conversion from {source} to {target} failed: {type(error).__name__}: {error}",
            ) from error
        log("INFO", f"{tensor.name} is {target}{result.shape} after the conversion")
        return result

    def _save(self, tensor: DumpTensor, array: _Array, format_name: str) -> None:
        kind = self.settings.kind
        stem = f"{tensor.io}.{tensor.slot}"
        if kind == "msnpy":
            name = f"{_msnpy_base(self.name, self.file)}.{stem}.{format_name}.npy"
        elif kind == "npy":
            name = f"{self.name}.{stem}.{'x'.join(map(str, array.shape))}.npy"
        else:
            try:
                dtype = dtype_in_name(tensor.data_type)
            except AbortError as error:
                raise _TensorError(str(error)) from error
            name = f"{self.name}.{stem}.{'_'.join(map(str, array.shape))}.{dtype}.{format_name}.bin"
        _save(self.settings.output, name, raw_parts(array) if kind == "bin" else npy_parts(array), tensor.name)

    def _save_source(self, tensor: DumpTensor) -> None:
        array = self.decoded[tensor.name]
        shape = original_shape_of(tensor)
        if shape and array.size == np.prod(shape, dtype=object):
            array = array.reshape(shape)
        self._save(tensor, array, format_of(tensor.format))
