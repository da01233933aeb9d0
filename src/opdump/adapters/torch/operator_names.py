"""The names by which a configuration may mean an operator of a PyTorch program.

    Default/network-LeNet/conv1-Conv2d/convolution-op0    its full name
    convolution-op0                                       the last component
    Default/network-LeNet/conv1-Conv2d                    the scope of a module: every operator that ran in it
    conv1                                                 the same module as `named_modules()` spells it

A module's name also means the operators of the modules below it and those of its gradients; the first two names mean one operator.
"""

from __future__ import annotations

from functools import cache

from .sites import GRADIENTS

_ROOT = 2
"""Components above the modules of a network: `Default/network-LeNet`."""


@cache
def names_of(op_name: str) -> frozenset[str]:
    """Every name that means the operator with this full name."""
    scope, _, last = op_name.rpartition("/")
    names = {op_name, last, scope}
    parts = scope.removeprefix(GRADIENTS).split("/")
    names.update("/".join(parts[:end]) for end in range(min(_ROOT, len(parts)), len(parts) + 1))
    # A scope's component is `conv1-Conv2d`, or `conv1` alone.
    path = [part.rpartition("-")[0] or part for part in parts[_ROOT:]]
    names.update(".".join(path[:end]) for end in range(1, len(path) + 1))
    return frozenset(names)
