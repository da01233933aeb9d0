"""The statistics of all tensors of a step as columns, so that two runs are compared with array operations."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import (
    LEAST_FILL,
    NAMES,
    Numbers,
    epsilon_of,
    has_statistics,
    numbers_apart,
    numbers_of,
)
from opdump.comparison.nodes import Node, Place, may_leave_results, place_in_list, storages_of
from opdump.kernels import SUMMARY_FIELDS
from opdump.records import TensorRecord

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One row per tensor."""

    sizes: Floats
    """The number of elements."""
    numbers: Floats
    """The statistics of `NAMES`; NaN for a missing one."""
    held: Bools
    """Whether each statistic is known."""
    told: Bools
    """Whether the tensor was captured and its norm is known."""

    @property
    def norms(self) -> Floats:
        """The norms; infinite if the tensor contains NaN, or if the norm is unknown."""
        norms = self.numbers[:, -1]
        return np.where(np.isnan(norms), np.inf, norms)

    def at(self, rows: Places) -> Columns:
        """Return these rows, in this order."""
        return Columns(self.sizes[rows], self.numbers[rows], self.held[rows], self.told[rows])


def columns_of(records: Iterable[TensorRecord]) -> Columns:
    """Return the columns of the tensors."""
    found = list(records)
    numbers = [numbers_of(record) for record in found]
    table = np.array(numbers, np.float64).reshape(len(found), len(NAMES))
    held = ~np.isnan(table)
    for row in np.flatnonzero(~held.all(axis=1)):
        held[row] = [number is not None for number in numbers[row]]
    captured = np.fromiter((not record.skip for record in found), bool, len(found))
    sizes = np.fromiter((math.prod(record.shape) for record in found), np.float64, len(found))
    return Columns(sizes, table, held, captured & held[:, -1])


def columns_of_summaries(rows: Floats, sizes: Floats, *, captured: Bools) -> Columns:
    """Return the columns of tensors with these summaries and sizes. The count of a tensor without a summary is NaN."""
    column = dict(zip(SUMMARY_FIELDS, rows.T, strict=True))
    counts = column["count"]
    averages = np.full(len(rows), np.nan)
    with np.errstate(all="ignore"):  # sums may be NaN or infinite
        np.divide(column["sum"], counts, out=averages, where=counts > 0)
        table = np.stack((column["max"], column["min"], averages, np.sqrt(column["sum_squares"])), axis=1)
    has_summary = ~np.isnan(counts)
    table[~has_summary] = np.nan
    held = np.repeat(has_summary[:, None], len(NAMES), axis=1)
    return Columns(sizes, table, held, captured & has_summary)


def rows_apart(one: Columns, other: Columns) -> Floats:
    """The distance between the tensors of each row, as in `apart`; NaN if they have no statistic in common."""
    a, b, both = one.numbers, other.numbers, one.held & other.held
    roots = np.sqrt(one.sizes)
    with np.errstate(all="ignore"):  # statistics may be NaN or infinite
        distances = np.abs(a - b)
        distances[:, -1] /= roots
        same = ~both | (a == b) | (np.isnan(a) & np.isnan(b))
        parts = distances / _scales(one, roots)[:, None]
        parts[~np.isfinite(distances) | np.isnan(parts)] = np.inf
    parts[same] = 0.0
    found: Floats = parts.max(axis=1, initial=0.0)
    for row in np.flatnonzero((np.abs(a[:, :2]).max(axis=1, initial=0.0) >= LEAST_FILL) & (found > 0)).tolist():
        # The fill value of a mask may dominate all sums. Few tensors have one, so they are compared one by one.
        distance = numbers_apart(_numbers(one, row), _numbers(other, row), int(one.sizes[row]))
        found[row] = found[row] if distance is None else distance
    found[~both.any(axis=1)] = np.nan
    found[one.sizes != other.sizes] = np.inf
    return found


def _numbers(columns: Columns, row: int) -> Numbers:
    pairs = zip(columns.numbers[row].tolist(), columns.held[row].tolist(), strict=True)
    return tuple(number if held else None for number, held in pairs)


def _scales(columns: Columns, roots: Floats) -> Floats:
    norms = columns.numbers[:, -1]
    ends = np.abs(columns.numbers[:, :2])
    largest = np.where(np.isfinite(ends), ends, 0.0).max(axis=1, initial=0.0)
    of_elements = np.divide(norms, roots, out=np.zeros_like(norms), where=roots > 0)
    return np.where(np.isfinite(norms), of_elements, largest)


# Finds a tensor of one run in another by size, maximum, minimum, mean and norm, with a tolerance for rounding.


class ValueIndex:
    """Looks up tensors of a step by their statistics. Tensors whose norms differ by more than the ratio `wide` are not compared."""

    def __init__(self, records: Iterable[TensorRecord], wide: float) -> None:
        self._wide = wide
        by_size: dict[int, list[tuple[float, Numbers]]] = defaultdict(list)
        for record in records:
            if has_statistics(record):
                for each in (record, _complement(record)) if record.dtype == "bool" else (record,):
                    by_size[math.prod(record.shape)].append((norm_of(each), numbers_of(each)))
        self._by_size: dict[int, tuple[list[float], list[Numbers]]] = {}
        for size, found in by_size.items():
            found.sort(key=lambda each: each[0])
            self._by_size[size] = [norm for norm, _ in found], [numbers for _, numbers in found]

    def distance(self, record: TensorRecord, wide: float | None = None) -> float:
        """The distance (`apart`) to the nearest tensor; infinite if no norm is within `wide` (by default, that of the index)."""
        wide = self._wide if wide is None else wide
        size, norm, numbers = math.prod(record.shape), norm_of(record), numbers_of(record)
        norms, others = self._by_size.get(size, ([], []))
        nearest = math.inf
        for place in self._near(norms, norm, wide):
            # The norms are a lower bound of the distance.
            if norm and math.isfinite(norm) and abs(norms[place] - norm) / norm > nearest * (1 + wide):
                break
            distance = numbers_apart(numbers, others[place], size)
            if distance is not None and distance < nearest:
                nearest = distance
                if not distance:
                    break
        return nearest

    def _near(self, norms: Sequence[float], norm: float, wide: float) -> Iterator[int]:
        """The positions of similar norms, nearest first."""
        if math.isinf(norm):
            yield from range(bisect_left(norms, math.inf), len(norms))
            return
        first = bisect_left(norms, norm * (1 - wide))
        last = bisect_right(norms, norm * (1 + wide))
        below, above = bisect_left(norms, norm, first, last) - 1, bisect_left(norms, norm, first, last)
        while below >= first or above < last:
            if below < first or (above < last and norms[above] - norm <= norm - norms[below]):
                yield above
                above += 1
            else:
                yield below
                below -= 1


def norm_of(record: TensorRecord) -> float:
    """The norm of a tensor; infinite if it contains NaN."""
    norm = float(record.statistics["l2norm"])
    return math.inf if math.isnan(norm) else norm


def size_of(record: TensorRecord) -> float:
    """The root mean square of the elements, from the norm; infinite if it is unknown."""
    return norm_of(record) / math.sqrt(max(1, math.prod(record.shape))) if has_statistics(record) else math.inf


def _complement(mask: TensorRecord) -> TensorRecord:
    """The statistics of the inverted mask, which counts as the same value."""
    given = mask.statistics
    size = math.prod(mask.shape)
    numbers = {
        "max": 1.0 - float(given.get("min", 0.0)),
        "min": 1.0 - float(given.get("max", 1.0)),
        "avg": 1.0 - float(given.get("avg", 0.0)),
        "l2norm": math.sqrt(max(0.0, size - float(given["l2norm"]) ** 2)),
    }
    return replace(mask, statistics={name: value for name, value in numbers.items() if name in given})


# What depends only on the operators of a step, and is shared by all steps that run the same ones: rows, readers, end results, sums.

OF_LISTS: Final = "_foreach_"
"""Prefix of operators that apply one operation to each tensor of a list."""
_FUSED: Final = "_fused_"
"""Prefix of operators that perform a whole optimizer step."""
_SHARE: Final = 0.1
"""If at least this share of a run's outputs has a type, the type is a choice."""
PRODUCTS: Final = frozenset({"MatMul", "BatchMatMul"})
"""Concepts of matrix products."""
_CONVOLUTIONS: Final = frozenset({"Conv1D", "Conv2D", "Conv3D"})
_SUMS: Final = PRODUCTS | _CONVOLUTIONS | {"ReduceSum", "ReduceMean", "Add", "AddN", "Sub", "CumSum", "BiasAddGrad"}
"""Concepts of operators whose outputs are sums."""


class StepRows:
    """The rows of a step's columns: the outputs of all nodes, followed by their inputs."""

    def __init__(self, nodes: Sequence[Node], finals: Collection[TensorRecord] = ()) -> None:
        self._nodes, self._finals = nodes, finals
        self.outputs: list[Place] = [(node.index, slot) for node in nodes for slot in node.outputs]
        self.inputs: list[Place] = [(node.index, slot) for node in nodes for slot in node.inputs]
        self.of_output: Mapping[Place, int] = {place: row for row, place in enumerate(self.outputs)}
        self.of_input: Mapping[Place, int] = {
            place: row for row, place in enumerate(self.inputs, start=len(self.outputs))
        }
        self.leaves: Places = np.array(
            [row for (index, slot), row in self.of_input.items() if slot not in nodes[index].makers], np.intp
        )
        """The rows of inputs without a known maker."""
        self._sums: tuple[Bools, _Sums] | None = None
        self._ends: tuple[Bools, list[Place]] | None = None
        self._partners: tuple[StepRows, Mapping[int, int], Places] | None = None

    @cached_property
    def users(self) -> Mapping[Place, list[Place]]:
        """The readers of each output."""
        found: dict[Place, list[Place]] = {}
        for node in self._nodes:
            for slot, maker in node.makers.items():
                found.setdefault(maker, []).append((node.index, slot))
        return found

    @cached_property
    def usual_rounding(self) -> float:
        """The coarsest rounding of the types that at least a tenth of the float outputs have; 0 if none is coarser than float32."""
        counts: dict[float, int] = {}
        for node in self._nodes:
            for record in node.outputs.values():
                epsilon = epsilon_of(record.dtype)
                if epsilon:
                    counts[epsilon] = counts.get(epsilon, 0) + 1
        few = _SHARE * sum(counts.values())
        usual = [each for each, count in counts.items() if count >= few and each > epsilon_of("float32")]
        return max(usual, default=0.0)

    def partners(self, other: StepRows, matched: Mapping[int, int]) -> Places:
        """For each output, the row of the same output of the matched operator in the other run; -1 if there is none."""
        if self._partners is None or self._partners[0] is not other or self._partners[1] is not matched:
            rows = [other.of_output.get((matched.get(index, -1), slot), -1) for index, slot in self.outputs]
            self._partners = other, matched, np.array(rows, np.intp)
        return self._partners[2]

    def ends(self, told: Bools) -> list[Place]:
        """The results of the step: `written`, or if it is empty, `unread`."""
        return self.written(told) or self.unread

    def written(self, told: Bools) -> list[Place]:
        """The last writes to memory that existed before the step. `told` marks the rows with statistics."""
        if self._ends is None or not np.array_equal(self._ends[0], told):
            self._ends = told, self._written(told)
        return self._ends[1]

    def _written(self, told: Bools) -> list[Place]:
        before = storages_of(self._finals)
        first: dict[int, str] = {}
        written: dict[tuple[int, int], Place] = {}
        for node in self._nodes:
            for record in node.inputs.values():
                if record.memory is None or record.skip:
                    continue
                made_in = first.get(record.memory.storage)
                if made_in is None or (made_in == "forward" and node.op.phase == "optimizer"):
                    before.add(record.memory.storage)
            for slot, record in node.outputs.items():
                if record.memory is not None and told[self.of_output[node.index, slot]]:
                    first.setdefault(record.memory.storage, node.op.phase)
                    written[record.memory.storage, record.memory.offset] = (node.index, slot)
        return [place for (storage, _), place in written.items() if storage in before]

    @cached_property
    def unread(self) -> list[Place]:
        """First outputs of operators that may leave results, if no operator computes anything from them: losses, for example."""
        nodes = self._nodes
        read = {
            maker
            for maker, readers in self.users.items()
            if any(nodes[each].outputs and not nodes[each].bare_type.endswith("_like") for each, _ in readers)
        }
        return [
            (node.index, 0)
            for node in nodes
            if may_leave_results(node) and 0 in node.outputs and (node.index, 0) not in read
        ]

    def shares_left(self, norms: Floats, told: Bools) -> Floats:
        """The size of each sum relative to its terms, from the norms of all rows; infinite for outputs that are not sums."""
        if self._sums is None or not np.array_equal(self._sums[0], told):
            self._sums = told, self._read_sums(told)
        return self._sums[1].shares_left(norms, len(self.outputs))

    def _read_sums(self, told: Bools) -> _Sums:
        outputs: list[int] = []
        first: list[int] = []
        second: list[int] = []
        rest: list[int] = []
        starts: list[int] = []
        factors: list[float] = []
        for row, (index, slot) in enumerate(self.outputs):
            node = self._nodes[index]
            if not told[row] or not _may_cancel(node):
                continue
            slots = inputs_of(node, slot)
            rows = [each for each in (self.of_input[index, place] for place in slots) if told[each]]
            if not rows:
                continue
            factor, summands = 1.0, rows
            if _is_gradient(node):
                summands = rows[:1]
            elif len(rows) == 2 and not node.concepts.isdisjoint(PRODUCTS):
                summands = []
            elif "ReduceMean" in node.concepts:
                sizes = math.prod(node.outputs[slot].shape), math.prod(node.inputs[slots[0]].shape)
                factor = math.sqrt(sizes[0] / max(1, sizes[1]))
            outputs.append(row)
            first.append(rows[0])
            second.append(rows[1] if not summands else -1)
            starts.append(len(rest))
            rest += summands or rows
            factors.append(factor)
        columns = [np.array(each, np.intp) for each in (outputs, first, second, rest, starts)]
        return _Sums(columns[0], columns[1], columns[2], columns[3], columns[4], np.array(factors, np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """The outputs that are sums. A product has its two factors in `first` and `second`; another sum has its terms in `rest`, from `starts`."""

    outputs: Places
    first: Places
    second: Places
    rest: Places
    starts: Places
    factors: Floats

    def shares_left(self, norms: Floats, count: int) -> Floats:
        found = np.full(count, np.inf)
        if not len(self.outputs):
            return found
        with np.errstate(all="ignore"):  # norms may be infinite
            of_sums = np.maximum.reduceat(norms[self.rest], self.starts) * self.factors
            scales = np.where(self.second < 0, of_sums, norms[self.first] * norms[self.second])
            mine = norms[self.outputs]
            shares = mine / scales
        shares[~np.isfinite(mine) | (scales == 0)] = np.inf
        found[self.outputs] = shares
        return found


def inputs_of(node: Node, slot: int) -> list[int]:
    """The inputs that an output depends on: all, except for operators on lists, whose outputs depend on their own list elements."""
    slots, count = sorted(node.inputs), len(node.outputs)
    if is_fused(node) and (place := place_in_list(node.outputs[slot])):
        return sorted([*node.inputs_by_place.get(place, ()), *node.inputs_by_place.get("", ())])
    if not node.bare_type.startswith(OF_LISTS) or count < 2 or len(slots) % count:
        return slots
    return slots[sorted(node.outputs).index(slot) :: count]


def is_fused(node: Node) -> bool:
    """Whether the node performs a whole optimizer step on a list of parameters: `_fused_adam_`."""
    return node.op.phase == "optimizer" and node.bare_type.startswith(_FUSED)


def _is_gradient(node: Node) -> bool:
    return node.op.phase == "backward" and node.bare_type.endswith("backward")


def _may_cancel(node: Node) -> bool:
    return _is_gradient(node) or not node.concepts.isdisjoint(_SUMS)
