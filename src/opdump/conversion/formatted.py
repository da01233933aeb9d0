"""A stored tensor in another format.

A large batch is converted a few of its members at a time, so that only those are held beside the pages of the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from opdump.conversion.plan import ConversionPlan
from opdump.conversion.stored_tensor import StoredTensor
from opdump.dump_file import DumpTensor
from opdump.errors import FormatShapeError, UndecodableTensorError, UnknownFormatError

_LARGE = 1 << 20
_SLAB = 1 << 25
# Formats whose first axis is the batch, which no block contains.
_BATCHES = frozenset({"NC1HWC0", "NC1HWC0_C04", "NDC1HWC0", "NCHW", "NHWC", "NCDHW", "NDHWC"})


def in_format(stored: StoredTensor, plan: ConversionPlan) -> StoredTensor:
    """In the format of the plan. Raises UnknownFormatError or FormatShapeError where there is no way to it."""
    tensor = stored.tensor
    shape = plan.shape or tensor.original_shape or None
    try:
        members = _members_at_a_time(stored, plan.format, shape)
        if not members:
            codes = _convert(stored, stored.codes, plan.format, shape)
            return replace(stored, codes=codes, format_name=plan.format, is_untouched=False)
        first = _convert(stored, stored.codes[:1], plan.format, (1, *shape[1:]) if shape else None)
    except (ValueError, OverflowError) as error:
        raise UndecodableTensorError(f"{tensor.name}: {stored.format_name} to {plan.format}: {error}") from error

    def slabs() -> Iterator[npt.NDArray[Any]]:
        for start in range(0, len(stored.codes), members):
            part = stored.codes[start : start + members]
            yield _convert(stored, part, plan.format, (len(part), *shape[1:]) if shape else None)
            forget(tensor)

    whole = (len(stored.codes), *first.shape[1:])
    return replace(stored, format_name=plan.format, is_untouched=False, slabs=slabs, slab_shape=whole)


def in_host_format(stored: StoredTensor) -> StoredTensor:
    """In the plain format of the framework where the way there is known, else as it is: its name says which."""
    from opdump.formats import DEVICE_FORMATS

    device = DEVICE_FORMATS.get(stored.format_name)
    if device is None or not stored.tensor.original_shape:
        return stored
    try:
        return in_format(stored, ConversionPlan(format=device.plain))
    except (UnknownFormatError, FormatShapeError):
        return stored


def forget(tensor: DumpTensor) -> None:
    """Let go of the pages of a mapped file: they would count as this process's until its last tensor."""
    if tensor.size >= _LARGE:
        mapped = tensor.data.read().obj
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def _convert(
    stored: StoredTensor, codes: npt.NDArray[Any], target: str, shape: tuple[int, ...] | None
) -> npt.NDArray[Any]:
    from opdump.formats import convert_format

    groups = max(1, stored.tensor.sub_format)
    return convert_format(codes, stored.format_name, target, shape=shape, groups=groups)


def _members_at_a_time(stored: StoredTensor, target: str, shape: tuple[int, ...] | None) -> int:
    """How many members of the batch make a slab; 0 where the tensor is converted as a whole."""
    codes = stored.codes
    if codes.nbytes <= _SLAB or stored.is_packed or not {stored.format_name, target} <= _BATCHES:
        return 0
    if codes.ndim < 4 or len(codes) < 2 or (shape is not None and shape[:1] != codes.shape[:1]):
        return 0
    return max(1, _SLAB * len(codes) // codes.nbytes)
