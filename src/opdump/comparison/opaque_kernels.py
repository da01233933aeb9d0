"""Operators that nobody here can run again, as those of other packages and graphs of `torch.compile`: given the same, do they give the same?

Without a second run in float64, only what was recorded tells. Where both runs gave such an operator the same bits, what it gives may differ by
the rounding of all that it does, and by no more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from opdump.adapters.replay import replayer_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.differences import difference, same_bits, unshaped_difference
from opdump.comparison.execution import Array, recorded, recorded_inputs
from opdump.comparison.kernel_accuracy import in_roundings, rounding_of
from opdump.comparison.nodes import Node, are_of_two_modes
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.op_types.unspecified import unspecified_outputs

_MOST_OF_ROUNDING: Final = 256.0
"""Units of rounding that may come together in an operator that is a whole network."""
_HALF: Final = 0.5
"""The same for narrow types, relative."""
_OF_THE_LARGEST: Final = 64.0
"""Units of rounding of the largest number that it reads or gives: what cancels to next to nothing is off by these."""
_OF_SEVERAL_PROCESSES: Final = "c10d"
"""In the names of collectives: what they give depends on what other processes gave them."""


def opaque_suspects(a: Trace, b: Trace, alignment: Alignment) -> tuple[list[Suspect], set[str]]:
    """Those that are given the same bits and give something else, and the kernels of those whose differences prove nothing."""
    suspects: list[Suspect] = []
    not_proven: set[str] = set()
    for there, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[there]
        if replayer_of(one.op) is not None or replayer_of(other.op) is not None:
            continue
        suspect, are_same = _judged(one, other)
        if suspect is not None:
            suspects.append(suspect)
        elif not are_same:
            not_proven.add(other.op.kernel or other.op.op_type)
    return suspects, not_proven


def _judged(one: Node, other: Node) -> tuple[Suspect | None, bool]:
    """What speaks against an operator, and whether its outputs are the same."""
    given, given_b = recorded_inputs(one), recorded_inputs(other)
    are_given_the_same = (
        given.keys() == given_b.keys()
        and all(same_bits(value, given_b[slot]) for slot, value in given.items())
        and not differing(one, other)
        and not (one.is_rewritten or other.is_rewritten)
        and _OF_SEVERAL_PROCESSES not in other.op.kernel
    )
    outputs = {
        slot: (first, second)
        for slot, record in other.outputs.items()
        if slot in one.outputs and slot not in unspecified_outputs(other.op.kernel or other.op.op_type)
        if (first := recorded(one.outputs[slot])) is not None and (second := recorded(record)) is not None
    }
    largest = max(map(_largest, (*given.values(), *(first for first, _ in outputs.values()))), default=0.0)
    are_same = True
    for slot, (first, second) in outputs.items():
        record = other.outputs[slot]
        found = (unshaped_difference if are_of_two_modes(one, other) else difference)(first, second)
        are_same &= not found
        epsilon = rounding_of(record, one.outputs[slot])
        if (
            are_given_the_same
            and found.relative > min(_HALF, _MOST_OF_ROUNDING * epsilon)
            and found.absolute > _OF_THE_LARGEST * epsilon * largest
        ):
            what = f"the inputs have the same bits in both runs and the outputs differ; {other.op.kernel or other.op.op_type} cannot be run again"
            return Suspect("kernel", one, other, "output", slot, in_roundings(found, record), what), False
    return None, are_same


def _largest(values: Array) -> float:
    """The largest absolute element; 0 where there is none that is finite."""
    if values.dtype.kind not in "fc":
        return 0.0
    absolute = np.abs(values)
    finite = absolute[np.isfinite(absolute)]
    return float(finite.max()) if finite.size else 0.0
