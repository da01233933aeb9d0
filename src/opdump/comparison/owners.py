"""Which parameter an operator of an optimizer works for.

An optimizer does the same to every parameter, with tensors of few shapes: what an operator is like, and where it stands, does not tell whose it is.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from opdump.comparison.trace import Trace


def owners(trace: Trace, parameters: AbstractSet[int]) -> dict[int, int]:
    """By node of the optimizer: the one storage of these that it writes into, or that is written with what it gives.

    What serves several parameters, as a norm of all gradients does, has no owner.
    """
    users = trace.users()
    found: dict[int, set[int]] = {}
    for node in reversed(trace.nodes):
        if node.op.phase != "optimizer":
            continue
        owned = found[node.index] = set()
        for slot, record in node.outputs.items():
            if record.memory is not None and record.memory.storage in parameters:
                owned.add(record.memory.storage)
            for reader, _ in users.get((node.index, slot), ()):
                owned |= found.get(reader, set())
    return {index: owned.pop() for index, owned in found.items() if len(owned) == 1}
