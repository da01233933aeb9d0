"""`compare -op`: one tensor of one operator, element by element.

Index,N C H W,NPUDump,GroundTruth,AbsoluteError,RelativeError
0,0 0 0 0,0.430664      ,0.430335       ,0.000329       ,0.000765
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpFile
from opdump.msaccucmp.comparison.golden_tensors import DumpSide, align, file_key
from opdump.msaccucmp.comparison.network import DeviceOutput, Network, stored_tensor, truth_path
from opdump.msaccucmp.conversion import read_converted
from opdump.msaccucmp.dump_source import decode, original_shape_of
from opdump.msaccucmp.exit_codes import CommandError, ExitCode, log
from opdump.msaccucmp.original_formats import Stored, can_convert, convert_format
from opdump.msaccucmp.output_folder import OutputFolder, npy_parts

_Array = npt.NDArray[Any]
_AXES: Final = {"NCDHW": "N C D H W"}
_DEFAULT_AXES: Final = "N C H W"
_SCALAR_AXES: Final = "ID"


def detail_by_rules(options: argparse.Namespace, output: OutputFolder, network: Network) -> ExitCode:
    """Compare a tensor of `-op` with its counterpart. Raises CommandError and AbortError."""
    name: str = options.op_name
    operator = network.rules.operators.get(name)
    if operator is None:
        raise CommandError(ExitCode.BAD_PARAMETER, f"-op {name} is not in the rules")
    dump = network.dump_of(operator)
    if dump is None:
        raise CommandError(ExitCode.NO_DUMP, f"there is no dump of {name}")
    file = read_converted(dump.path)
    io, index = _chosen(options, file, name)
    arrays = {tensor.name: decode(tensor) for tensor in file.tensors}
    tensor = (file.inputs if io == "input" else file.outputs)[index]
    device = DeviceOutput(operator, tensor, arrays[tensor.name], dump.path)
    origin, path = truth_path(network, device)
    truth = network.truth.read(origin, path)
    stored = stored_tensor(device)
    if network.is_quantised:
        mine, golden = network.aligned(device, truth)
    else:
        mine, golden = align(stored, truth.array, truth.format, network.scripts, flatten=False)
        mine, golden = _in_nchw(mine, truth.format), _in_nchw(golden, truth.format)
    group = network.rules.group_of[name]
    axes = _SCALAR_AXES if not truth.array.shape else _AXES.get(truth.format, _DEFAULT_AXES)
    names = (group.names.replace(",", " "), network.golden_names(group).replace(",", " ") or "*")
    return _write(options, output, f"{file_key(name)}_{io}_{index}", mine, golden, ElementNames(*names, axes))


def detail_of_dumps(options: argparse.Namespace, output: OutputFolder, mine: DumpSide, golden: DumpSide) -> ExitCode:
    """Compare a tensor of `-op` in two dumps of devices, in the stored order. Raises CommandError and AbortError."""
    name: str = options.op_name
    files = []
    for option, side in (("-m", mine), ("-g", golden)):
        found = side.newest(name)
        if found is None:
            raise CommandError(ExitCode.NO_DUMP, f"{option} has no dump of {name}")
        log("INFO", f"{option}: {found.path}")
        files.append(read_converted(found.path))
    arrays = []
    for file in files:
        io, index = _chosen(options, file, name)
        tensor = (file.inputs if io == "input" else file.outputs)[index]
        arrays.append(decode(tensor).reshape(original_shape_of(tensor)))
    left, right = arrays
    if left.shape != right.shape:
        raise CommandError(
            ExitCode.BAD_DUMP, f"{name} has the shape {left.shape} on the left and {right.shape} on the right"
        )
    return _write(options, output, f"{name}_{io}_{index}", left, right, ElementNames(name, name, _DEFAULT_AXES))


def _chosen(options: argparse.Namespace, file: DumpFile, name: str) -> tuple[str, int]:
    """Whether an input or an output is selected, and its number; the default is the first output."""
    io = "output" if options.input is None else "input"
    index = int(options.output or options.input or 0)
    count = len(file.outputs if io == "output" else file.inputs)
    if index >= count:
        raise CommandError(ExitCode.BAD_INDEX, f"{name} has {count} {io}s, but no {index} (counted from 0)")
    return io, index


def _in_nchw(array: _Array, format_name: str) -> _Array:
    if array.ndim == 4 and can_convert(format_name, "NCHW"):
        return convert_format(format_name, "NCHW", array, Stored(array.shape))
    return array


def _write(
    options: argparse.Namespace, output: OutputFolder, base: str, mine: _Array, golden: _Array, names: ElementNames
) -> ExitCode:
    try:
        output.write(f"{base}.npy", npy_parts(np.ascontiguousarray(mine)))
        table = ElementTable.of(np.ascontiguousarray(mine), golden)
        write_element_table(
            output, base, table, names, top=options.topn, lines=None if options.ignore_result else options.max_line
        )
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{base} cannot be written ({error.strerror})") from error
    log("INFO", f"the elements are in {output.path}")
    return ExitCode.OK


# The files about one tensor, element by element: all elements, the largest errors, and a summary.

_NONE: Final = "-"
_FEWEST_AXES: Final = 4
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class ElementNames:
    """The names of the operators and the axes in the summary."""

    mine: str
    golden: str
    axes: str

    @property
    def header(self) -> str:
        return f"Index,{self.axes},NPUDump,GroundTruth,AbsoluteError,RelativeError\n"


@dataclass(frozen=True, slots=True)
class ElementTable:
    """Two tensors and their errors, flat. An undefined error is NaN; booleans have none."""

    shape: tuple[int, ...]
    mine: _Array
    golden: _Array
    absolute: _Array
    relative: _Array
    are_booleans: bool

    @classmethod
    def of(cls, mine: _Array, golden: _Array) -> ElementTable:
        are_booleans = mine.dtype == np.bool_ and golden.dtype == np.bool_
        shape = mine.shape
        mine, golden = mine.reshape(-1), golden.reshape(-1)
        if are_booleans:
            nothing = np.full(mine.shape, np.nan, np.float32)
            return cls(shape, mine, golden, nothing, nothing, are_booleans)
        mine, golden = np.real(mine), np.real(golden)
        with np.errstate(all="ignore"):
            absolute = np.abs(mine - golden)  # in the common type that numpy selects
            relative = np.abs(absolute / golden)
        if absolute.dtype.kind == "f":
            absolute[~np.isfinite(absolute)] = np.nan
        return cls(shape, mine, golden, absolute, relative, are_booleans)


def write_element_table(
    output: OutputFolder, base: str, table: ElementTable, names: ElementNames, *, top: int, lines: int | None
) -> None:
    """Write the files whose names begin with `base`; `lines` per file, and no list of all elements if it is None. Raises OSError."""
    count = table.mine.size
    for start in range(0, count, lines) if lines else ():
        end = min(start + (lines or 0), count)
        output.write(f"{base}_{start}.csv", _encoded([names.header], _lines(table, range(start, end), detail=True)))
    for kind, errors in (("absolute", table.absolute), ("relative", table.relative)):
        rows = list(_lines(table, largest(errors, top, are_booleans=table.are_booleans), detail=False))
        output.write(f"{base}_{kind}_error_topn.csv", _encoded([names.header], rows))
        for row in rows:
            log("INFO", row.replace("\t", "").strip())
    summary = [f"TotalCount:{count}\n", f"NPUDump:{names.mine}\n", f"GroundTruth:{names.golden}\n"]
    summary.append(f"Format:{names.axes}\n")
    for kind, errors in (("Absolute", table.absolute), ("Relative", table.relative)):
        numbers = np.where(np.isfinite(errors), errors, 0)
        ends = (numbers.min(), numbers.max()) if numbers.size else (0.0, 0.0)
        for name, value in zip(("Min", "Max"), ends, strict=True):
            summary.append(f"{name}{kind}Error:{_NONE if table.are_booleans else f'{value:.6f}'}\n")
    output.write(f"{base}_summary.txt", _encoded(summary))


def _encoded(*parts: Iterable[str]) -> Iterator[bytes]:
    for part in parts:
        held: list[str] = []
        for text in part:
            held.append(text)
            if len(held) >= _AT_ONCE:
                yield "".join(held).encode()
                held = []
        yield "".join(held).encode()


def _lines(table: ElementTable, chosen: Sequence[int], *, detail: bool) -> Iterator[str]:
    """One line for each element; in the list of all elements, non-finite numbers are written by name."""
    axes = max(len(table.shape), _FEWEST_AXES)
    shape = (*table.shape, *(1,) * (axes - len(table.shape)))
    for index in chosen:
        place = " ".join(map(str, np.unravel_index(index, shape)))
        values = [_value(values[index], detail=detail) for values in (table.mine, table.golden)]
        absolute = _value(table.absolute[index], detail=detail and not table.are_booleans)
        relative = _value(table.relative[index], detail=False)
        if detail and relative == _NONE:
            yield f"{index},{place},{values[0]}\t,{values[1]}\t,{absolute}\t,{_NONE}\n"
        else:
            yield f"{index},{place},{values[0]}\t,{values[1]}\t,{absolute}\t,{relative}\t\n"


def _value(value: Any, *, detail: bool) -> str:
    if isinstance(value, np.bool_):
        return str(value)
    return f"{value:.6f}" if detail or np.isfinite(value) else _NONE


def largest(errors: _Array, top: int, *, are_booleans: bool) -> Sequence[int]:
    """The indices of the largest errors, the largest first. Undefined errors count as 0 but still come first.

    If more are requested than exist, the smallest is left out. Among equal errors, numpy decides.
    """
    top = top if top <= errors.size else max(errors.size - 1, 1)
    if are_booleans:
        return range(top)
    known = np.isfinite(errors)
    if not errors.size:
        return ()
    chosen = np.argpartition(np.where(known, errors, 0), -top)[-top:]
    there = known[chosen]
    if not there.all() and not errors[chosen][there].any():  # there is nothing to sort by
        return [int(index) for index in np.sort(chosen)] if there.any() else [int(index) for index in chosen]
    numbers = np.sort(chosen[there])
    ordered = numbers[np.argsort(errors[numbers], kind="stable")[::-1]]
    return [int(index) for index in (*chosen[~there], *ordered)]
