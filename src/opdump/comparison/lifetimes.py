"""When the values of a step are needed last, so that a comparison holds what is alive and not the whole step."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from opdump.comparison.trace import Trace

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What no operator after each uses, by its index in the trace."""

    storages: Mapping[int, Sequence[int]]
    outputs: Mapping[int, Sequence[tuple[int, int]]]
    """Of tensors whose memory is not known: the outputs, by node and slot."""


def lifetimes(trace: Trace, kept: Collection[int] = ()) -> Lifetimes:
    """Who uses what last. Storages of parameters, and those that are kept, are needed after the step."""
    storages: dict[int, int] = {}
    outputs: dict[tuple[int, int], int] = {}
    for node in trace.nodes:
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                storages[record.memory.storage] = node.index
        outputs |= {(node.index, slot): node.index for slot, record in node.outputs.items() if record.memory is None}
        outputs |= {maker: node.index for maker in node.makers.values() if maker in outputs}
    for storage in (*kept, *(record.memory.storage for record in trace.finals.values() if record.memory is not None)):
        storages.pop(storage, None)
    return Lifetimes(_by_last_use(storages), _by_last_use(outputs))


def lasting(trace: Trace, *, is_last: bool) -> set[int]:
    """The storages that may be there after the step: what was there before it, parameters, what an optimizer writes into, and what nobody
    read again. Of the last step, after which nothing tells, also what has as many elements as one of these: a state may be made anew.
    """
    made: set[int] = set()
    read: set[int] = set()
    sizes: dict[int, int] = {}
    found: set[int] = {record.memory.storage for record in trace.finals.values() if record.memory is not None}
    for node in trace.nodes:
        ins = {
            record.memory.storage for record in node.inputs.values() if record.memory is not None and not record.skip
        }
        outs = {record.memory.storage for record in node.outputs.values() if record.memory is not None}
        found |= ins - made
        if node.op.phase == "optimizer":
            found |= ins & outs
        made |= outs
        read = (read | ins) - outs
        for record in (*node.inputs.values(), *node.outputs.values()):
            if record.memory is not None:
                storage = record.memory.storage
                sizes[storage] = max(sizes.get(storage, 0), math.prod(record.shape))
    found |= made - read
    if is_last:
        of_states = {sizes[storage] for storage in found if storage in sizes}
        found |= {storage for storage in made if sizes[storage] in of_states}
    return found


def _by_last_use(last: Mapping[Key, int]) -> dict[int, list[Key]]:
    found: dict[int, list[Key]] = {}
    for key, index in last.items():
        found.setdefault(index, []).append(key)
    return found
