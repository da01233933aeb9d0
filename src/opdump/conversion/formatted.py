"""The plan of a conversion, and a tensor in the format that it asks for."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from opdump.dump_file import DumpTensor
from opdump.errors import FormatShapeError, OpdumpError, UndecodableTensorError, UnknownFormatError

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.conversion.stored_tensor import StoredTensor
    from opdump.formats import Reading
    from opdump.records import IO

# The plan of a conversion, and the result for each file.

FileType = Literal["npy", "bin", "pt", "txt"]
Layout = Literal["dumps", "mindspore"]
"""`dumps`: every file in the directory of its dump, named after it. `mindspore`: the tree of a synchronous dump."""


class ConversionError(OpdumpError):
    """A conversion cannot begin, or a file cannot be converted as requested."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """How every file is converted.

    `format` is the target format, empty for the format of the device; `shape` then replaces the original shape in the file. `io`
    and `slot` select one tensor of each file; None selects all.
    """

    file_type: FileType = "npy"
    format: str = ""
    shape: tuple[int, ...] | None = None
    io: IO | None = None
    slot: int = 0
    layout: Layout = "dumps"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to convert: its path, the output subdirectory of its parts, and the stem of their names."""

    path: str
    directory: str
    """Relative to the output directory; empty for the output directory itself."""
    name: str
    """The true name, from mapping.csv if the name on disk is digits."""
    size: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A file, or one tensor of it, that could not be converted. `error` is the class of the error."""

    path: str
    tensor: str
    """`output:0`; empty for the whole file."""
    error: str
    reason: str


@dataclass(slots=True)
class FileResult:
    """The result for one file. `outputs` are relative to the output directory."""

    path: str
    outputs: list[str] = field(default_factory=list)
    tensors: int = 0
    bytes: int = 0
    failures: list[Failure] = field(default_factory=list)
    shortened: list[tuple[str, str, str]] = field(default_factory=list)
    """Directory, name on disk, true name of each output whose name was too long."""
    samples: list[str] = field(default_factory=list)
    """The `outputs` with only the first elements of a larger tensor, because the dump has no more."""
    fatal: bool = False
    """Whether the disk is full or cannot be written, so that no other file can succeed either."""

    def fail(self, error: Exception, tensor: str = "") -> None:
        self.failures.append(failure(self.path, error, tensor))


def failure(path: str, error: Exception, tensor: str = "") -> Failure:
    """The `error` as a row of the summary, without the path and the tensor, which have columns of their own."""
    reason = str(error) or type(error).__name__
    for known in (path, tensor):
        if known:
            reason = reason.removeprefix(f"{known}: ")
    return Failure(path, tensor, type(error).__name__, reason)


# The elements of a tensor as a conversion writes them: the bytes of the file if they can be copied, otherwise in another format.

# Tensors whose bytes can be copied unchanged, without numpy: importing numpy takes longer than all other work on a small file, and
# most tensors do not need it.

# Keys are the type names of records, which equal numpy's names. Dump files are little-endian.
_DESCRS: Final[Mapping[str, str]] = {
    "bool": "|b1",
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}
_MOST_DIMENSIONS: Final = 32


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """The first `size` bytes of the tensor in the file are its elements in C order, of numpy type `descr`."""

    tensor: DumpTensor
    descr: str
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype_name(self) -> str:
        return self.tensor.dtype

    @property
    def format_name(self) -> str:
        return self.tensor.format_name


def plain_tensor(tensor: DumpTensor, plan: ConversionPlan) -> PlainTensor | None:
    """The tensor as a `PlainTensor`; None if its file needs other bytes, or if it is unusual in any way."""
    if plan.format or plan.layout != "dumps" or plan.file_type not in ("npy", "bin"):
        return None
    descr = _DESCRS.get(tensor.dtype)
    # The meaning of an empty shape depends on the bytes, and the code that makes arrays reports invalid shapes.
    if descr is None or not 0 < len(tensor.shape) <= _MOST_DIMENSIONS or min(tensor.shape) <= 0:
        return None
    size = math.prod(tensor.shape) * int(descr[2:])
    return PlainTensor(tensor, descr, size) if size <= tensor.size else None


# A large tensor is converted part by part. If each part can be written before the next is computed, only one is in memory, beside
# the pages of the file. Otherwise (groups of weights that share blocks) the whole result is in memory, and the pages of each
# converted part are released.

_LARGE = 1 << 20
_SLAB = 1 << 25
"""Bytes of the result that are converted at a time."""
_READ = 1 << 24
"""Bytes of the source that are read before their pages are released, if the result is built as a whole."""


def in_format(stored: StoredTensor, plan: ConversionPlan) -> StoredTensor:
    """The tensor in the format of the plan. Raises UnknownFormatError or FormatShapeError if it cannot be converted."""
    from opdump.conversion.stored_tensor import slabs_of
    from opdump.formats import Reading

    tensor = stored.tensor
    shape = plan.shape or tensor.original_shape or None
    changed = replace(stored, format_name=plan.format, is_untouched=False)
    if stored.codes.nbytes > _SLAB and not _shares_blocks(stored, plan.format):
        cut = slabs_of(stored.codes, stored.format_name, plan.format, shape, _SLAB // stored.codes.itemsize)
        if cut is not None:

            def slabs() -> Iterator[npt.NDArray[Any]]:
                for part, wanted in cut.parts():
                    yield _convert(stored, part, plan.format, wanted)
                    if part.flags.c_contiguous:  # otherwise every part would touch every page
                        forget(tensor)

            return replace(changed, slabs=slabs, slab_shape=cut.shape)
    reading = Reading(_READ, lambda: forget(tensor))
    try:
        return replace(changed, codes=_convert(stored, stored.codes, plan.format, shape, reading))
    except (ValueError, OverflowError) as error:
        raise UndecodableTensorError(f"{tensor.name}: {stored.format_name} to {plan.format}: {error}") from error


def in_host_format(stored: StoredTensor) -> StoredTensor:
    """The tensor in the plain format of the framework if the conversion is known; otherwise unchanged, and its name contains the
    format.
    """
    from opdump.formats import DEVICE_FORMATS

    device = DEVICE_FORMATS.get(stored.format_name)
    if device is None or not stored.tensor.original_shape:
        return stored
    try:
        return in_format(stored, ConversionPlan(format=device.plain))
    except (UnknownFormatError, FormatShapeError):
        return stored


def forget(tensor: DumpTensor) -> None:
    """Release the pages of a mapped file, which would otherwise count as this process's memory until its last tensor."""
    if tensor.size >= _LARGE:
        mapped = tensor.data.read().obj
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def _convert(
    stored: StoredTensor,
    codes: npt.NDArray[Any],
    target: str,
    shape: tuple[int, ...] | None,
    reading: Reading | None = None,
) -> npt.NDArray[Any]:
    from opdump.formats import convert_format

    return convert_format(codes, stored.format_name, target, shape=shape, groups=_groups(stored), reading=reading)


def _groups(stored: StoredTensor) -> int:
    return max(1, stored.tensor.sub_format)


def _shares_blocks(stored: StoredTensor, target: str) -> bool:
    """Whether groups of a convolution share a block, so that no range of filters can be converted separately."""
    return _groups(stored) > 1 and any(name.startswith("FRACTAL_Z") for name in (stored.format_name, target))
