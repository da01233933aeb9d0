"""What is reported about arguments that differ."""

from __future__ import annotations

import pytest

from opdump.comparison.arguments import told_of


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (["mul 0.5", "erf", "add"], ["mul 0.5", "tanh", "add"], "erf in A, tanh in B"),
        (["mul", "add"], ["mul", "tanh", "add"], "nothing in A, tanh in B"),
        (["mul"], ["mul", "mul"], "nothing in A, mul in B"),
        ([1, 2], [1, 3], "[1, 2] in A, [1, 3] in B"),
        (None, ["mul"], "None in A, ['mul'] in B"),
    ],
)
def test_of_equations_the_part_that_differs_is_told(one: object, other: object, told: str) -> None:
    assert told_of({"equations": (one, other)}) == f"equations: {told}"
