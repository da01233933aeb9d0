"""Operators that make more of rounding than the statistics of what they read let expect."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Final

from opdump.comparison.nodes import Node, place_in_list
from opdump.comparison.step_rows import PRODUCTS, inputs_of, is_fused
from opdump.comparison.value_index import has_statistics, norm_of

GROWTH: Final = 32.0
"""One operator makes a difference of its inputs no larger than this many times."""
_NOTHING: Final = 1e-4
"""What is so much smaller than the others is next to nothing."""
_DIVISORS: Final = MappingProxyType({"RealDiv": 1, "Addcdiv": 2})
"""The input that an operator of a concept divides by."""
_PARAMETERS: Final = "self["
_SQUARES: Final = frozenset({"exp_avg_sqs", "state_sums"})
"""Arguments of fused optimizers: the parameters, and the squares that they divide by the roots of."""
_SIGN: Final = "Sign"


def makes_much_of_nothing(node: Node, slot: int) -> bool:
    """Whether some elements are divided by next to nothing, or their sign alone counts: an optimizer makes full steps of what rounding left."""
    if _SIGN in node.concepts:
        return True
    if is_fused(node):
        return _divides_by_next_to_nothing(node, slot)
    slots, place = inputs_of(node, slot), next((_DIVISORS[each] for each in node.concepts if each in _DIVISORS), None)
    divisor = None if place is None or place >= len(slots) else node.inputs[slots[place]]
    if divisor is None or not has_statistics(divisor):
        return False
    least = float(divisor.statistics.get("min", math.inf))
    return 0 <= least * math.sqrt(math.prod(divisor.shape)) <= _NOTHING * norm_of(divisor)


def _divides_by_next_to_nothing(node: Node, slot: int) -> bool:
    """Whether what a fused optimizer gives a parameter is a division by the root of squares of which some are next to nothing."""
    written = node.outputs[slot]
    if not written.argument.startswith(_PARAMETERS):
        return False
    place = place_in_list(written)
    squares = [each for each in node.outputs.values() if each.argument in {f"{name}{place}" for name in _SQUARES}]
    return any(
        has_statistics(each)
        and 0
        <= float(each.statistics.get("min", math.inf))
        <= _NOTHING**2 * float(each.statistics.get("avg", -math.inf))
        for each in squares
    )


def single_elements(node: Node, slot: int, drift: float) -> float:
    """How far an output may be off whose inputs are off by so much, by their statistics, all of it in a few elements.

    Statistics of many elements hide what one of them is off by: a unit of a network that is on in one run alone. A sum of few shows it.
    """
    return GROWTH * drift * math.sqrt(max(1.0, _summands(node, slot)))


def _summands(node: Node, slot: int) -> float:
    """Of how many elements of an input each element of an output is a sum."""
    sizes = [math.prod(node.inputs[each].shape) for each in inputs_of(node, slot)]
    size = math.prod(node.outputs[slot].shape)
    if not size or not sizes:
        return 1.0
    if not node.concepts.isdisjoint(PRODUCTS):
        return math.sqrt(math.prod(sizes[-2:]) / size)
    return max(sizes) / size
