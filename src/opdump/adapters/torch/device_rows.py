"""Computes the summary of a tensor on its device: one row of numbers per block of elements; the host combines the rows.

    total squares max min positive negative nan positive_inf negative_inf

Blocks limit the temporaries: a block has one float64 copy, which is squared in place last. The counts of a block are far below 2**53,
so float64 holds them exactly. Max and min of 64-bit integers are stored as bits. No operator here uses a vendor library: if a program
requires deterministic algorithms, PyTorch refuses those of CUDA (`dot`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from opdump.kernels import Summary

BLOCK = 1 << 20
"""Elements per block: 9 MiB of temporaries."""
WIDTH = 9
NARROW = 6
"""Columns of the rows of integer types, which have no NaN or infinities."""

_WIDE = torch.float64
_INT64_MIN = -(2**63)
_LOW_32 = 0xFFFFFFFF
_SMALL_FLOATS = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)


def blocks_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements as one-dimensional views, in any order. If no such view exists, copies, one block at a time."""
    count = tensor.numel()
    if is_dense(tensor):
        flat = torch.as_strided(tensor, (count,), (1,), tensor.storage_offset())
        yield from (flat,) if count <= BLOCK else flat.split(BLOCK)
    elif count <= BLOCK:
        yield tensor.reshape(-1)
    elif tensor.shape[0] == 1:
        yield from blocks_of(tensor[0])
    else:
        rows = max(1, BLOCK * tensor.shape[0] // count)
        for part in tensor.split(rows):
            yield from blocks_of(part)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one contiguous range of memory, each once, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def queue_row(block: torch.Tensor, row: torch.Tensor, *, low_precision: bool) -> None:
    """Queue the computation of a one-dimensional block's numbers into `row`: WIDTH float64 cells for floats, NARROW for others.

    With `low_precision`, floats are summed in their own type.
    """
    if block.dtype in _SMALL_FLOATS:
        block = block.to(torch.float32)
    if block.dtype.is_floating_point:
        torch.stack(_of_floats(block, low_precision=low_precision), out=row)
    else:
        torch.stack(_of_whole_numbers(block), out=row)


def _of_floats(block: torch.Tensor, *, low_precision: bool) -> list[torch.Tensor]:
    values = block if low_precision else block.to(_WIDE, copy=True)
    least, greatest = torch.aminmax(values)
    total, positive, negative = values.sum(), _count(values.gt(0)), _count(values.lt(0))
    # In place only if the memory is the capture's own copy.
    squares = (values.square() if low_precision else values.square_()).sum()
    del values
    return [
        *(total, squares, greatest, least, positive, negative),
        _count(block.ne(block)),
        _count(block.eq(math.inf)),
        _count(block.eq(-math.inf)),
    ]


def _count(which: torch.Tensor) -> torch.Tensor:
    return which.sum(dtype=_WIDE)


def _of_whole_numbers(block: torch.Tensor) -> list[torch.Tensor]:
    has_64_bits = block.dtype in (torch.int64, torch.uint64)
    # Few kernels support unsigned types wider than 8 bits.
    if block.dtype is torch.uint16:
        block = block.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    elif block.dtype is torch.uint32:
        block = block.view(torch.int32).to(torch.int64).bitwise_and_(_LOW_32)
    extremes: tuple[torch.Tensor, torch.Tensor] | None = None
    if block.dtype is torch.uint64:
        bits = block.view(torch.int64)
        # Flipping the sign bit maps the unsigned order to the signed one; `summary_of` reverses it.
        extremes = torch.aminmax(bits.bitwise_xor(_INT64_MIN))
        values = bits.bitwise_right_shift(32).bitwise_and_(_LOW_32).to(_WIDE).mul_(2.0**32)
        values += bits.bitwise_and(_LOW_32)
    else:
        if has_64_bits:
            extremes = torch.aminmax(block)
        values = block.to(_WIDE, copy=True)
    if extremes is None:
        least, greatest = torch.aminmax(values)
    else:
        least, greatest = (extreme.view(_WIDE) for extreme in extremes)
    total, positive, negative = values.sum(), _count(values.gt(0)), _count(values.lt(0))
    return [total, values.square_().sum(), greatest, least, positive, negative]


def summary_of(rows: npt.NDArray[np.float64], count: int, dtype: torch.dtype) -> tuple[Summary, tuple[int, int] | None]:
    """The summary of a tensor of `count` elements from the rows of its blocks and, for 64-bit integers, the exact max and min."""
    positive = negative = nan = positive_inf = negative_inf = 0
    is_float = dtype.is_floating_point
    for row in rows.tolist():
        positive += int(row[4])
        negative += int(row[5])
        if is_float:
            nan += int(row[6])
            positive_inf += int(row[7])
            negative_inf += int(row[8])
    exact: tuple[int, int] | None = None
    if dtype in (torch.int64, torch.uint64):
        bits = np.ascontiguousarray(rows[:, 2:4]).view(np.int64)
        exact = int(bits[:, 0].max()), int(bits[:, 1].min())
        if dtype is torch.uint64:
            exact = exact[0] - _INT64_MIN, exact[1] - _INT64_MIN
        greatest, least = map(float, exact)
    else:
        # numpy's max and min return NaN if there is one. Adding 0.0 removes the sign of a zero.
        greatest, least = float(rows[:, 2].max()) + 0.0, float(rows[:, 3].min()) + 0.0
    return (
        Summary(
            count=float(count),
            nan=float(nan),
            positive_inf=float(positive_inf),
            negative_inf=float(negative_inf),
            zero=float(count - positive - negative - nan),
            negative=float(negative),
            positive=float(positive),
            max=greatest,
            min=least,
            sum=_added(rows[:, 0]),
            sum_squares=_added(rows[:, 1]),
        ),
        exact,
    )


def _added(column: npt.NDArray[np.float64]) -> float:
    values: Sequence[float] = column.tolist()
    # fsum raises for infinities of both signs, and for sums that overflow.
    return math.fsum(values) if all(map(math.isfinite, values)) and abs(sum(values)) < math.inf else sum(values)
