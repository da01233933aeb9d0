"""Data that both programs read, with some other elements in one of them: found by what it holds, whoever reads it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import difference, epsilon_of, equal_elements, is_permutation, same_bits
from opdump.comparison.evidence import apart
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace, has_elements, leaf_name, names_a_state
from opdump.records import TensorRecord

Array = NDArray[Any]

_ALIKE: Final = 0.5
"""At least this share of the elements is the same to the bit."""
_ROUNDINGS: Final = 64.0
"""What is less apart than so many units of the largest element's rounding is rounded."""


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
        what = f"an input of the program differs where it is read first: {apart(one.values, other.values)}"
        yield Suspect("data", one.node, other.node, "input", other.slot, math.inf, what)


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
