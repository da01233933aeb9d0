"""The names of models and operators of a MindSpore program, for the `dump_list` of an acl.json.

Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0    its full name
Conv2D-op0                                                             the last component
Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d              the scope of a Cell: all operators that ran in it
network._backbone.conv1, conv1                                         the same Cell, as in `cells_and_names()` of a model
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opdump.adapters.models import Models
from opdump.adapters.program_marks import ModelNames
from opdump.plan import DumpPlan

_WRAPPERS: Final = "mindspore.nn.wrap"
"""The module of Cells that wrap a network: losses, gradients, training steps."""
_WRAPPED: Final = ("network", "_backbone", "_network")
"""The attributes of such Cells that contain the network."""


def models_of(plan: DumpPlan, given: ModelNames, names: OperatorNames, wants: Callable[[int], bool]) -> Models | None:
    """The models of a plan whose layout has operators by model; None for other plans."""
    if not (plan.mode.files_selected and plan.layout_facts.by_model):
        return None
    return Models(plan, given, names, wants, unwrapped=unwrapped, class_name=_name)


def unwrapped(model: Any) -> list[Any]:
    """A Cell and the networks that it only wraps, outermost first. A function is returned as the only element."""
    found = [model]
    while type(found[-1]).__module__.startswith(_WRAPPERS):
        inner = next((cell for name in _WRAPPED if (cell := getattr(found[-1], name, None)) is not None), None)
        if inner is None or any(inner is each for each in found):
            break
        found.append(inner)
    return found


def _name(model: Any) -> str:
    """The name of a Cell's class, or of a function."""
    name: str = model.__name__ if hasattr(model, "__code__") else type(model).__name__
    return name


class OperatorNames:
    """The names that a configuration may use for an operator."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def of(self, op_name: str) -> frozenset[str]:
        """All names that refer to the operator with this full name."""
        names = self._names.get(op_name)
        if names is None:
            names = self._names[op_name] = frozenset(_names_of(op_name))
        return names


def _names_of(op_name: str) -> set[str]:
    # A backward operator is also selected by the Cells of its forward operator.
    own = op_name.removeprefix("Gradients/")
    parts = [part for part in own.split("/")[:-1] if not part.startswith("Grad_")]
    names = {op_name, own.rpartition("/")[2], op_name.rpartition("/")[0]}
    cells = parts[1:] if parts[:1] == ["Default"] else []
    first = 0
    while first < len(cells) and cells[first].partition("-")[0] in _WRAPPED:
        first += 1
    for end in range(1, len(cells) + 1):
        names.add("/".join(["Default", *cells[:end]]))
        names |= {_spelled(cells[start:end]) for start in range(min(first, end) + 1)}
    names.discard("")
    return names


def _spelled(cells: list[str]) -> str:
    """The dotted path of a Cell from the components of its scope: `conv1-Conv2d`, or `conv1` without the class."""
    return ".".join(part.rpartition("-")[0] or part for part in cells)
