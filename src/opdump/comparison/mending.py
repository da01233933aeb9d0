"""Which differences of two programs matter, and which they leave behind.

Both programs run in float64 from the same values. A difference is left behind where everything that B computes from it, on every way to what
remains of the step, comes to a value that A has as well: a factor that is applied before a product in one program and after it in the other.
Of the rest, B is run with all of them mended and with some: an operator of B that gives what A's gives is not reached by a difference
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.causes import fingerprint
from opdump.comparison.ends import Ends, ends_of, is_same
from opdump.comparison.execution import Execution, draws, recorded, replay
from opdump.comparison.trace import Node, Trace, leaf_name

Array = NDArray[Any]

_MOST_RUNS: Final = 24
"""How often a step is run again."""
_ALIKE: Final = 0.5
"""Two inputs that have at least this share of their elements in common are one, of which some elements were changed."""
_CLOSE: Final = 1e-3


class Mending:
    """Both programs, run through the step in float64 from A's data, parameters and random numbers."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        self._b, self._alignment = b, alignment
        self._storages = {there: here for here, there in alignment.storages.items()}
        self._first = Execution(a)
        for node in a.nodes:
            values = {
                slot: value
                for slot, record in node.inputs.items()
                if not record.skip and (value := self._first.look_up(node, slot, recorded(record))) is not None
            }
            self._first.inputs[node.index] = values
            _give(self._first, node, values)

    def harmless(self, differences: Sequence[AbstractSet[int]]) -> set[int]:
        """Which of the differences change nothing of what B leaves."""
        found: set[int] = set()
        whole = self._left(_mended(differences, found))
        runs = 0

        def look(places: Sequence[int]) -> None:
            """As many as possible are left as they are, in order: two that cancel each other are harmless together."""
            nonlocal runs
            if not places or runs == _MOST_RUNS:
                return
            runs += 1
            left = found | set(places)
            if all(map(is_same, whole, self._left(_mended(differences, left)))):
                found.update(left)
            elif len(places) > 1:
                look(places[: len(places) // 2])
                look(places[len(places) // 2 :])

        look(range(len(differences)))
        return found

    def left_behind(self, differences: Sequence[AbstractSet[int]]) -> set[int]:
        """The differences from which every way leads to values that A has too. Each is given by the operators of B that it reaches first."""
        run = self._run(frozenset())
        of_a = {
            _in_order(value)
            for values in (*self._first.inputs.values(), *self._first.outputs.values())
            for value in values.values()
            if value.dtype.kind in "fc"
        }
        users: dict[int, set[int]] = {}
        for (reader, _), writers in run.writers.items():
            for writer in writers:
                users.setdefault(writer, set()).add(reader)
        known = {index for index, values in run.outputs.items() if self._is_known(index, values, of_a)}
        ends = {node.index for node in self._b.nodes if node.index not in users or _lasts(run, node)}
        found = set()
        for place, reached in enumerate(differences):
            seen: set[int] = set()
            # What one gives instead of its partner's may be there in A, too, but not where it is read: who reads it tells.
            waiting = [
                index for index in reached if index not in known or (index not in ends and self._is_other(run, index))
            ]
            while waiting and waiting[-1] not in ends:
                index = waiting.pop()
                if index not in seen:
                    seen.add(index)
                    waiting.extend(users[index] - known)
            if not waiting:
                found.add(place)
        return found

    def _is_known(self, index: int, values: Mapping[int, Array], of_a: AbstractSet[tuple[float, ...]]) -> bool:
        """Whether what a node of B gives is there in A."""
        partner = self._alignment.a_of.get(index)
        of_partner = {} if partner is None else self._first.outputs[partner]
        return all(
            _in_order(value) in of_a
            if value.dtype.kind in "fc"
            else slot in of_partner and np.array_equal(value, of_partner[slot])
            for slot, value in values.items()
        )

    def _is_other(self, run: Execution, index: int) -> bool:
        """Whether a node of B gives something else than the node of A that it is matched with."""
        partner = self._alignment.a_of.get(index)
        of_partner = {} if partner is None else self._first.outputs[partner]
        return any(
            slot in of_partner and _in_order(value) != _in_order(of_partner[slot])
            for slot, value in run.outputs[index].items()
            if value.dtype.kind in "fc"
        )

    def _left(self, mended: AbstractSet[int]) -> Ends:
        return ends_of(self._run(mended), set())

    def _run(self, mended: AbstractSet[int]) -> Execution:
        second = Execution(self._b)
        for node in self._b.nodes:
            values = {
                slot: value
                for slot, record in node.inputs.items()
                if not record.skip and (value := second.look_up(node, slot, self._leaf(node, slot))) is not None
            }
            second.inputs[node.index] = values
            partner = self._alignment.a_of.get(node.index)
            if partner is not None and (node.index in mended or draws(node)):
                second.outputs[node.index] = dict(self._first.outputs[partner])
                second.write(node, self._first.outputs[partner])
            else:
                _give(second, node, values)
        return second

    def _leaf(self, node: Node, slot: int) -> Array | None:
        """What A has there: of what may be it, that which B's is closest to, unless that is something else."""
        own = recorded(node.inputs[slot])
        if own is None:
            return next(self._leaves_of_a(node, slot), None)
        closest = max(self._leaves_of_a(node, slot), key=lambda value: _share_alike(own, value), default=own)
        return closest if _share_alike(own, closest) >= _ALIKE else own

    def _leaves_of_a(self, node: Node, slot: int) -> Iterator[Array]:
        record = node.inputs[slot]
        storage = None if record.memory is None else self._storages.get(record.memory.storage)
        for held in (
            None if storage is None else self._first.leaf_storages.get(storage),
            self._first.leaves.get(leaf_name(record)),
        ):
            value = None if held is None else held.seen_as(record)
            if value is not None:
                yield value
        partner = self._alignment.a_of.get(node.index)
        if partner is not None and (partner, slot) in self._first.leaf_reads and slot in self._first.inputs[partner]:
            yield self._first.inputs[partner][slot]


def _share_alike(own: Array, other: Array) -> float:
    """Which share of the elements is the same, as far as two runs that are rounded differently have the same."""
    if own.shape != other.shape:
        return 0.0
    return float(np.mean(np.isclose(own, other, rtol=_CLOSE, equal_nan=True))) if own.size else 1.0


def _mended(differences: Sequence[AbstractSet[int]], left: AbstractSet[int]) -> AbstractSet[int]:
    """The operators that give what A's give, where those differences are left as they are."""
    return frozenset(index for place, reached in enumerate(differences) if place not in left for index in reached)


def _give(run: Execution, node: Node, values: Mapping[int, Array]) -> None:
    """What a node gives for these inputs; what cannot be run again gives what it gave."""
    done = replay(node, values)
    own = {slot: recorded(record) for slot, record in node.outputs.items()} if done is None else done.outputs
    run.outputs[node.index] = {slot: value for slot, value in own.items() if value is not None}
    run.write(node, run.outputs[node.index])


def _lasts(run: Execution, node: Node) -> bool:
    """Whether it writes what is there after the step: what was there before it, or a state of an optimizer."""
    written = {record.memory.storage for record in node.outputs.values() if record.memory is not None}
    read = {record.memory.storage for record in node.inputs.values() if record.memory is not None}
    return bool(written & (run.leaf_storages.keys() | (read if node.op.phase == "optimizer" else set())))


def _in_order(values: Array) -> tuple[float, ...]:
    """The same for the same elements in the same order alone, whatever the shape."""
    flat = values.reshape(-1)
    places = np.arange(1, flat.size + 1)
    return (*fingerprint(flat), *fingerprint(flat * np.sin(places)))
