"""Reads a large source in its memory order, so that pages of a mapped file can be released on the way.

The whole result is in memory and filled box by box: a box is a range of each axis of the plain tensor, chosen so that its
elements are close together in the source. The order of the result does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

Box = tuple[tuple[int, int], ...]
"""Start and end on each axis."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read: `done` is called after every part of about `most` bytes of its memory, which is not read again soon.

    A part is up to twice as large if it does not begin with a block, or as large as the innermost loop of the memory.
    """

    most: int
    done: Callable[[], None]


class Loop(NamedTuple):
    """A loop of the source's memory: it runs along `axis` of the plain tensor, `unit` elements per step, each within `span`
    bytes.
    """

    axis: int
    unit: int
    span: int


def loops_of(array: Array) -> list[Loop]:
    """The loops of an array without blocks, the outermost first."""
    return outermost_first(Loop(axis, 1, abs(stride)) for axis, stride in enumerate(array.strides))


def outermost_first(loops: Iterable[Loop]) -> list[Loop]:
    return sorted(loops, key=lambda loop: loop.span, reverse=True)


def boxes(shape: Shape, loops: Sequence[Loop], reading: Reading | None) -> Iterator[Box]:
    """The tensor box by box; without a reading it is one box. The caller must read each before it requests the next."""
    whole = tuple((0, size) for size in shape)
    if reading is None:
        yield whole
        return
    for box in _cut(whole, loops, reading.most):
        yield box
        reading.done()


def _cut(box: Box, loops: Sequence[Loop], most: int) -> Iterator[Box]:
    if not loops:
        yield box
        return
    axis, unit, span = loops[0]
    start, stop = box[axis]
    if stop - start <= unit:  # the loop does not run
        yield from _cut(box, loops[1:], most)
        return
    step = unit * max(1, most // max(1, span))
    for at in range(start, stop, step):
        part = (*box[:axis], (at, min(at + step, stop)), *box[axis + 1 :])
        if span > most:
            yield from _cut(part, loops[1:], most)
        else:
            yield part
