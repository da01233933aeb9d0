"""The elements of a tensor as a conversion writes them: the bytes of the file if they can be copied, otherwise in another format."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opdump.conversion.plan import ConversionPlan
from opdump.dump_file import DumpTensor
from opdump.errors import FormatShapeError, UndecodableTensorError, UnknownFormatError

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.conversion.stored_tensor import StoredTensor
    from opdump.formats import Reading

# Tensors whose bytes can be copied unchanged, without numpy: importing numpy takes longer than all other work on a small file, and
# most tensors do not need it.

# Keys are the type names of records, which equal numpy's names. Dump files are little-endian.
_DESCRS: Final[Mapping[str, str]] = MappingProxyType(
    {
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
)
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
    from opdump.conversion.slabs import slabs_of
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
