"""The models of a MindSpore program: their names, and their steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from opdump.adapters.base import DumpComplete
from opdump.adapters.models import Models
from opdump.adapters.program_marks import ModelNames
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

# The names of models and operators of a MindSpore program, for the `dump_list` of an acl.json.
#
# Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0    its full name
# Conv2D-op0                                                             the last component
# Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d              the scope of a Cell: all operators that ran in it
# network._backbone.conv1, conv1                                         the same Cell, as in `cells_and_names()` of a model

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


# Finds the steps of a MindSpore program, in PyNative and in graph mode.
#
# A step can end after an optimizer, after a compiled call that trains, or, in a program without optimizers, after a gradient. If nothing
# trains, it can end after a network. It ends when the next network or gradient begins, so what runs in between belongs to the ended step.
# Two optimizers in a row are one step. Once something has trained, a network that is given no data begins no step: it averages or clips parameters.


class Steps:
    """Counts the steps of a program.

    When a step has ended, and before it is filed, `when_step_ends` are called with its number in the program's thread. `began` is called
    after the next step has begun. Only the outermost networks, gradients and optimizers of a thread count.
    """

    def __init__(self, recorder: Recorder, *, first: int, manual: bool, stop_after_dump: bool) -> None:
        self.step = first
        self.when_step_ends: list[Callable[[int], object]] = []
        self.began: Callable[[], None] = lambda: None
        self.has_optimizer = False
        """Whether the program has created an optimizer. If so, a gradient does not end a step."""
        self._recorder = recorder
        self._first = first
        self._manual = manual
        self._stop_after_dump = stop_after_dump
        self._may_end = False
        self._trains = False
        self._ran: set[int] = set()
        """The networks that ran in this step, by identity; not used once something trains."""
        self._here = threading.local()
        self._lock = threading.RLock()

    @property
    def is_wanted(self) -> bool:
        return self._recorder.wants(self.step)

    @property
    def _depth(self) -> int:
        """The number of networks, gradients, optimizers and compiled calls that are running in this thread."""
        return getattr(self._here, "depth", 0)

    @property
    def is_outermost(self) -> bool:
        """Whether no such call is running in this thread."""
        return self._depth == 0

    @property
    def may_count(self) -> bool:
        """Whether a network that begins now in this thread is not inside another network, an optimizer or compiled code."""
        return self._depth == 0 or (self._depth == 1 and getattr(self._here, "gradient", False))

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        with self._lock:
            self._manual = True
            self._end()

    @contextmanager
    def network(self, identity: int, *, trains: bool, reads_data: bool) -> Iterator[None]:
        """A call of a network or of compiled code. `trains`: an optimizer runs inside. `reads_data`: it is given a tensor that is not a parameter."""
        outermost = self.is_outermost
        if outermost and (trains or reads_data or not self._trains):
            self._begins(identity)
        elif self.may_count and getattr(self._here, "first", False):
            # A program may evaluate its network before the first gradient. That evaluation is a step of its own.
            self._here.first = False
            with self._lock:
                if identity in self._ran:
                    self._end_unless_manual()
        with self._inside():
            yield
        if outermost:
            with self._lock:
                self._trains = self._trains or trains
                self._may_end = self._may_end or trains
                if not self._trains:
                    self._ran.add(identity)

    @contextmanager
    def gradient(self) -> Iterator[None]:
        """A function that computes gradients, with its forward and backward pass."""
        outermost = self.is_outermost
        if outermost:
            self._begins(None)
            self._here.gradient = True
            self._here.first = not self._trains
        try:
            with self._inside():
                yield
        finally:
            if outermost:
                self._here.gradient = False
        if outermost:
            with self._lock:
                self._trains = True
                self._may_end = self._may_end or not self.has_optimizer

    @contextmanager
    def optimizer(self) -> Iterator[None]:
        """A call of an optimizer."""
        with self._inside():
            yield
        with self._lock:
            self.has_optimizer = self._trains = self._may_end = True

    def close(self) -> None:
        """File everything: the program or its capture has ended."""
        around = self._recorder.circumstances
        around.first_step = self._first
        around.next_step = self.step + 1 if self._may_end or self._ran else self.step
        self._file()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._here.depth = self._depth + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    def _begins(self, identity: int | None) -> None:
        with self._lock:
            if self._may_end or (not self._trains and identity in self._ran):
                self._end_unless_manual()

    def _end_unless_manual(self) -> None:
        if not self._manual:
            self._end()

    def _end(self) -> None:
        ended = self.step
        self._file()
        self.step += 1
        self._may_end = False
        self._ran.clear()
        if self._stop_after_dump and self._recorder.plan.steps.ends_by(ended):
            raise DumpComplete
        self.began()

    def _file(self) -> None:
        for told in self.when_step_ends:
            told(self.step)
        self._recorder.end_step(self.step)
