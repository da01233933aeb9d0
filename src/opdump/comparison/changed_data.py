"""Data that both programs read, with other elements in one of them: memory that no operator wrote, or that something else changed since.

Data is found by what it holds, whatever reads it. It counts where something differs for it in the end: memory that was never written holds
what was there before, and a mask may leave it out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import (
    Difference,
    difference,
    epsilon_of,
    equal_elements,
    is_permutation,
    same_bits,
    unshaped_difference,
)
from opdump.comparison.evidence import amount_apart, apart
from opdump.comparison.execution import recorded
from opdump.comparison.kernel_accuracy import in_roundings
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Kind, Suspect
from opdump.comparison.trace import Trace, has_elements, leaf_name, names_a_state
from opdump.graph import shown_source
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import TensorRecord

Array = NDArray[Any]

_ALIKE: Final = 0.5
"""At least this share of the elements is the same to the bit."""
_ROUNDINGS: Final = 64.0
"""What is less apart than so many units of the largest element's rounding is rounded."""
_SHOWS: Final = 8.0
"""What follows from other data is further apart than so many units of rounding."""


@dataclass(frozen=True, slots=True)
class Read:
    """What no operator made, where a program reads it first."""

    node: Node
    slot: int
    values: Array


def changed_data(
    a: Trace, b: Trace, read_a: Collection[tuple[int, int]], read_b: Collection[tuple[int, int]]
) -> Iterator[tuple[Read, Read]]:
    """Pairs of inputs of A and of B, by node and slot, that are the same but for some elements, and that the other program has nowhere as
    they are. What is apart by rounding is the same. Parameters are no data.
    """
    first, second = _data(a, read_a), _data(b, read_b)
    only_a = [one for one in first if not any(same_bits(one.values, other.values) for other in second)]
    only_b = [other for other in second if not any(same_bits(one.values, other.values) for one in first)]
    for other in only_b:
        alike = [(_share(one.values, other.values), one) for one in only_a]
        share, one = max(alike, key=lambda pair: pair[0], default=(0.0, None))
        if one is not None and share >= _ALIKE and _is_changed(one, other):
            yield one, other


def data_suspects(
    a: Trace, b: Trace, read_a: Collection[tuple[int, int]], read_b: Collection[tuple[int, int]]
) -> Iterator[Suspect]:
    """The same pairs, each where it is read first."""
    for one, other in changed_data(a, b, read_a, read_b):
        what = f"data differ: {apart(one.values, other.values)}; an input of the program, where it is read first"
        amount = amount_apart(one.values, other.values)
        yield Suspect("data", one.node, other.node, "input", other.slot, math.inf, what, amount)


def data_suspect(
    one: Node, other: Node, slot: int, values: tuple[Array, Array], found: Difference, written_by: str = ""
) -> Suspect:
    """What is said where both programs read data that differ by `found`; `written_by` is the operator whose output was changed there since."""
    record = other.inputs[slot]
    kind: Kind = "parameter" if names_a_state(leaf_name(record)) else "data"
    what = f"data differ: {apart(*values)}; {changed_since(written_by) if written_by else f'{shown_data(record)}, where it is read first'}"
    score, amount = in_roundings(found, record), amount_apart(*values)
    return Suspect(kind, one, other, "input", slot, score, what, amount)


def changed_since(maker: str) -> str:
    """What is said of memory that something else wrote after an operator."""
    return f"what {maker} left there was changed since by something other than an operator"


def shown_data(record: TensorRecord) -> str:
    """What an input that no operator made is called: `data-0`, `inputs0, an input of the network`."""
    name = leaf_name(record)
    if name and not names_a_state(name) and name.startswith("Parameter."):
        return f"{name.removeprefix('Parameter.')}, an input of the network"
    return shown_source(name) or "an input of the program"


def shows(a: Trace, b: Trace, alignment: Alignment, other: Node) -> bool:
    """Whether what a node of B gives leads to a result that differs: to an output that no operator reads, a number that the program reads, or
    an operator that only B has. Where what follows is the same in both runs, what was read differently does not matter.
    """
    users = b.users()
    waiting, seen = [other.index], {other.index}
    while waiting:
        node = b.nodes[waiting.pop()]
        partner = alignment.a_of.get(node.index)
        if partner is None or not node.outputs:
            return True
        for slot, record in node.outputs.items():
            if slot in unspecified_outputs(node.op.kernel or node.op.op_type):
                continue
            before = a.nodes[partner].outputs.get(slot)
            first, second = None if before is None else recorded(before), recorded(record)
            if first is not None and second is not None:
                found = unshaped_difference(first, second)
                if found.relative <= _SHOWS * epsilon_of(record.dtype):
                    continue
            readers = [index for index, _ in users.get((node.index, slot), ())]
            if not readers:
                return True
            waiting += [index for index in readers if index not in seen]
            seen.update(readers)
    return False


def _data(trace: Trace, reads: Collection[tuple[int, int]]) -> list[Read]:
    found: list[Read] = []
    for index, slot in sorted(reads):
        node = trace.nodes[index]
        record = node.inputs[slot]
        if not has_elements(record) or _is_written(node, record) or names_a_state(leaf_name(record)):
            continue
        values = record.numpy().reshape(-1)
        if values.size > 1 and not any(same_bits(values, known.values) for known in found):
            found.append(Read(node, slot, values))
    return found


def _is_written(node: Node, record: TensorRecord) -> bool:
    """Whether an operator writes into what it reads: a gradient that adds up, an average."""
    written = {output.memory.storage for output in node.outputs.values() if output.memory is not None}
    return record.memory is not None and record.memory.storage in written


def _is_changed(one: Read, other: Read) -> bool:
    """Whether elements are others, and not rounded or in another order."""
    if is_permutation(one.values, other.values):
        return False
    least = _ROUNDINGS * epsilon_of(other.node.inputs[other.slot].dtype)
    return not least or difference(one.values, other.values).peak > least


def _share(one: Array, other: Array) -> float:
    """The share of elements that are the same; 0 for other types and sizes."""
    if one.dtype != other.dtype or one.size != other.size:
        return 0.0
    return float(np.mean(equal_elements(one, other)))
