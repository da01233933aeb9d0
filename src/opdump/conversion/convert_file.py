"""Converts one dump file to one file for each of its tensors, buffers and workspaces: npy, bin, pt or txt."""

from __future__ import annotations

import importlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdump.conversion.formatted import (
    ConversionError,
    ConversionPlan,
    FileResult,
    FileType,
    SourceFile,
    forget,
    in_format,
    in_host_format,
    plain_tensor,
)
from opdump.conversion.output_directory import (
    OutputDirectory,
    OutputFullError,
    short_name,
    synchronous_name,
    tensor_ending,
    write_all,
    write_two,
)
from opdump.dump_file import DumpFile, DumpTensor, read_dump_file
from opdump.dump_file.dump_file import samples_of
from opdump.dump_file.stored_bytes import Bytes, FileBytes
from opdump.errors import NotInDumpError, OpdumpError, UndecodableTensorError
from opdump.npy_header import npy_header

if TYPE_CHECKING:
    from opdump.conversion.formatted import PlainTensor
    from opdump.conversion.stored_tensor import StoredTensor

# A tensor that cannot be converted is listed in the result; the others are written.

_OVERFLOW = "opdebug.node_opdebug."
"""The prefix of the names of overflow files, in lower case: the documents spell it in two ways."""


def convert_file(source: SourceFile, plan: ConversionPlan, output: OutputDirectory) -> FileResult:
    """Convert one file. Never raises for invalid content or output that cannot be written: the result lists it."""
    result = FileResult(source.path)
    try:
        file = read_dump_file(source.path)
        if source.name.lower().startswith(_OVERFLOW):
            _convert_overflow(file, source, output, result)
        else:
            _convert_tensors(file, source, plan, output, result)
    except OutputFullError as error:
        result.fatal = True
        result.fail(error)
    except (OpdumpError, OSError) as error:
        result.fail(error)
    return result


def _convert_tensors(
    file: DumpFile, source: SourceFile, plan: ConversionPlan, output: OutputDirectory, result: FileResult
) -> None:
    samples = samples_of(file)
    for tensor in _chosen(file, plan):
        with failing_alone(result, tensor.name):
            convert_tensor(tensor, samples.get(tensor.name), file.op_name, source, plan, output, result)
        forget(tensor)
    if plan.io is not None:
        return
    for part, blobs in (("l1buffer", file.buffers), ("space", file.spaces)):
        for slot, blob in enumerate(blobs):
            name = f"{source.name}.{part}.{slot}.bin"
            _write(name, source, output, result, partial(write_all, parts=(blob.data.read(),)))


def convert_tensor(
    tensor: DumpTensor,
    whole: tuple[int, ...] | None,
    op_name: str,
    source: SourceFile,
    plan: ConversionPlan,
    output: OutputDirectory,
    result: FileResult,
) -> None:
    """Write one tensor of the operator with this true name. `whole` is the shape of the tensor if the file has only a sample."""
    if plan.format and whole is not None:
        raise UndecodableTensorError(
            f"{tensor.name}: contains a sample, the first {tensor.shape[0]} elements of a tensor of shape "
            f"{whole}; only a whole tensor can be converted to another format: leave out --format"
        )
    name, write = _prepared(tensor, op_name, source, plan)
    _write(name, source, output, result, write)
    result.tensors += 1
    if whole is not None:
        result.samples.append(result.outputs[-1])


def _prepared(
    tensor: DumpTensor, op_name: str, source: SourceFile, plan: ConversionPlan
) -> tuple[str, Callable[[int], int]]:
    """The name of a tensor's file, and the function that writes it."""
    plain = plain_tensor(tensor, plan)
    if plain is not None:
        return f"{source.name}.{tensor_ending(plain, plan)}", partial(write_plain, plain, plan.file_type)
    from opdump.conversion.stored_tensor import stored_tensor  # imports numpy

    stored = stored_tensor(tensor)
    if plan.format:
        stored = in_format(stored, plan)
    elif plan.layout == "mindspore":
        stored = in_host_format(stored)
    if plan.layout == "mindspore":
        name = synchronous_name(source.name, op_name, stored)
    else:
        name = f"{source.name}.{tensor_ending(stored, plan)}"
    return name, partial(WRITERS[plan.file_type], stored)


def _convert_overflow(file: DumpFile, source: SourceFile, output: OutputDirectory, result: FileResult) -> None:
    from opdump.dump_file.opdebug import decode_opdebug, opdebug_json

    for tensor in file.outputs:
        with failing_alone(result, tensor.name):
            record = decode_opdebug(tensor.data.read(), source.path)
            for problem in record.problems:
                result.fail(UndecodableTensorError(problem), tensor.name)
            name = f"{source.name}.output.{tensor.slot}.json"
            _write(name, source, output, result, partial(write_all, parts=(opdebug_json(record).encode(),)))
            result.tensors += 1


@contextmanager
def failing_alone(result: FileResult, tensor: str) -> Iterator[None]:
    """Collect the failure of one tensor and continue with the others; a full disk ends the whole conversion."""
    try:
        yield
    except OutputFullError:
        raise
    except (OpdumpError, MemoryError) as error:
        result.fail(error, tensor)


def _write(
    name: str, source: SourceFile, output: OutputDirectory, result: FileResult, write: Callable[[int], int]
) -> None:
    stored = short_name(name)
    with output.new_file(source.directory, stored) as descriptor:
        result.bytes += write(descriptor)
    result.outputs.append(f"{source.directory}/{stored}" if source.directory else stored)
    if stored != name:
        result.shortened.append((source.directory, stored, name))


def _chosen(file: DumpFile, plan: ConversionPlan) -> tuple[DumpTensor, ...]:
    if plan.io is None:
        return file.tensors
    tensors = file.inputs if plan.io == "input" else file.outputs
    if plan.slot >= len(tensors):
        raise NotInDumpError(f"has no {plan.io} {plan.slot}; it has {len(tensors)} (from 0)")
    return (tensors[plan.slot],)


def is_same_directory(path: str | Path, identity: tuple[int, int]) -> bool:
    """Whether `path` is the directory with this device and inode."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


# Writes a tensor as npy, bin, pt or txt.
#
# npy: C order, numpy's header 1.0, types that numpy lacks are widened. bin: the elements as stored on the device. pt: a PyTorch
# tensor, of the true type if PyTorch has it. txt: one value per line, the shortest text that reads back as the same element, after
#
#     # dtype=float16 shape=(2,3)

# From this size on, elements are copied from file to file instead of being mapped.
_LARGE = 1 << 20


_npy_header = lru_cache(maxsize=256)(npy_header)  # a dump has many tensors of few shapes


def _write_npy(stored: StoredTensor, descriptor: int) -> int:
    kind = stored.host_type
    descr = ("|" if kind.itemsize == 1 else "<") + kind.str[1:]
    header = _npy_header(descr, stored.shape)
    if not stored.is_untouched:
        return write_all(descriptor, (header,)) + write_all(descriptor, stored.values())
    return _write_untouched(descriptor, header, stored.tensor.data, stored.codes.nbytes)


def write_plain(plain: PlainTensor, file_type: FileType, descriptor: int) -> int:
    """Write a plain tensor as npy or bin; returns the number of bytes written."""
    header = _npy_header(plain.descr, plain.shape) if file_type == "npy" else b""
    return _write_untouched(descriptor, header, plain.tensor.data, plain.size)


def _write_bin(stored: StoredTensor, descriptor: int) -> int:
    if not stored.is_untouched:
        return write_all(descriptor, stored.raw())
    return _write_untouched(descriptor, b"", stored.tensor.data, stored.codes.nbytes)


def _write_untouched(descriptor: int, header: bytes, data: Bytes, size: int) -> int:
    """Write a header and the first `size` bytes of `data`."""
    if size >= _LARGE and isinstance(data, FileBytes):
        # Every piece except the first begins at a page boundary of the new file.
        pieces = data.source.pieces(data.start, size, first=_LARGE - len(header) % mmap.PAGESIZE)
        with closing(pieces):
            return write_all(descriptor, (header,)) + write_all(descriptor, pieces)
    return write_two(descriptor, header, data.read()[:size])


def _write_txt(stored: StoredTensor, descriptor: int) -> int:
    sizes = ",".join(map(str, stored.shape)) + ("," if len(stored.shape) == 1 else "")
    header = f"# dtype={stored.dtype_name} shape=({sizes})\n".encode()

    def lines() -> Iterator[bytes]:
        for piece in stored.values():
            for start in range(0, len(piece), 1 << 16):
                some = piece[start : start + (1 << 16)]
                if some.dtype.kind == "b":
                    some = some.view("u1")
                yield "\n".join(some.astype(str).tolist()).encode() + b"\n"
                del some
            del piece  # frees it before the next piece is made

    return write_all(descriptor, (header,)) + write_all(descriptor, lines())


def _write_pt(stored: StoredTensor, descriptor: int) -> int:

    return write_torch(stored, descriptor)


WRITERS: Final[Mapping[FileType, Callable[[StoredTensor, int], int]]] = {
    "npy": _write_npy,
    "bin": _write_bin,
    "pt": _write_pt,
    "txt": _write_txt,
}
"""Writes a tensor to a descriptor; returns the number of bytes written."""


# Writes tensors to PyTorch files: the only place outside of the adapters that imports PyTorch, and only when such a file is
# requested.

_OWN_TYPES = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu")


def require_torch() -> None:
    """Raises ConversionError if PyTorch cannot be imported."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise ConversionError(
            f"--to pt writes files of PyTorch, which cannot be imported ({error}): pip install torch, or use --to npy"
        ) from error


def write_torch(stored: StoredTensor, descriptor: int) -> int:
    """Write a tensor with the element type of the device if PyTorch has it, otherwise with the widened one; returns the number of
    bytes written.
    """
    import numpy as np
    import torch

    own = stored.dtype_name in _OWN_TYPES and hasattr(torch, stored.dtype_name)
    kind = getattr(torch, stored.dtype_name) if own else torch.from_numpy(np.empty(0, stored.host_type)).dtype
    tensor = torch.empty(stored.shape, dtype=kind)
    flat = tensor.reshape(-1)
    done = 0
    for piece in stored.values():
        count = len(piece)
        if own:
            flat[done : done + count] = torch.from_numpy(piece.copy())  # a writable copy, or PyTorch warns
        else:
            flat.numpy()[done : done + count] = piece  # PyTorch would turn a bool of byte 7 into 1
        done += count
        del piece
        forget(stored.tensor)
    with os.fdopen(os.dup(descriptor), "wb") as output:
        torch.save(tensor, output)
    return os.fstat(descriptor).st_size
