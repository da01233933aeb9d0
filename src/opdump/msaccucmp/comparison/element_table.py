"""The files about one tensor, element by element: all elements, the largest errors, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.msaccucmp.journal import log
from opdump.msaccucmp.output_folder import OutputFolder

_NONE: Final = "-"
_FEWEST_AXES: Final = 4
_AT_ONCE: Final = 10_000
_Array = npt.NDArray[Any]


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
