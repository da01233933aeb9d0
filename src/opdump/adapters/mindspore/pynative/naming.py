"""The place of an operator in the program: its name, the Cells around it, whether it is marked, and its lines."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import mindspore

from opdump.adapters.program_marks import UNMARKED, ProgramMarks, key_of
from opdump.adapters.program_stacks import ProgramStacks, Stack

# Names of operators, and the number of executions of each in a step.
#
#     Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0
#     Gradients/Default/network-WithLossCell/_backbone-LeNet/fc1-Dense/Grad_MatMul/MatMul-op0
#
# These are the names that MindSpore gives to the operators of a compiled network.

_DEFAULT = "Default"
_GRADIENTS = "Gradients"


class Names:
    """Numbers the operators of one type in one scope, in execution order. Not thread-safe.

    `unique`: file names contain only the last component, so each operator has its own number, in the order of first executions.
    """

    def __init__(self, *, unique: bool = False) -> None:
        self._numbers: dict[str, int] | None = {} if unique else None
        self._counts: Counter[tuple[bool, str]] = Counter()
        self._executions: Counter[str] = Counter()

    def name(self, scope: str, op_type: str, *, again: bool = False) -> str:
        """The next name of an operator. `again`: it is recomputed, and gets the name of its first execution."""
        stem = f"{scope}/{op_type}"
        number = self._counts[again, stem]
        self._counts[again, stem] = number + 1
        name = f"{stem}-op{number}"
        if self._numbers is None:
            return name
        return f"{stem}-op{self._numbers.setdefault(name, len(self._numbers))}"

    def occurrence(self, op_name: str) -> int:
        """The number of earlier executions of this name in the step. Counts one execution."""
        found = self._executions[op_name]
        self._executions[op_name] = found + 1
        return found

    def restart(self) -> None:
        """Number operators from 0 again, because the program calls its network again."""
        self._counts.clear()

    def clear(self) -> None:
        """Forget the step, which has ended."""
        self._counts.clear()
        self._executions.clear()


def forward_scope(path: str) -> str:
    return f"{_DEFAULT}/{path}" if path else _DEFAULT


def gradient_scope(path: str | None = None, forward_type: str = "") -> str:
    """The scope of operators that compute the gradient of a forward operator; `Gradients/Default` if that is unknown."""
    if path is None:
        return f"{_GRADIENTS}/{_DEFAULT}"
    scope = f"{_GRADIENTS}/{forward_scope(path)}"
    return f"{scope}/Grad_{forward_type}" if forward_type else scope


# Finds the Cells around an operator.
#
#     network(x) runs layers[0].dense        layers-CellList/0-Block/dense-Dense
#
# Paths are those that MindSpore gives to the operators of a compiled network. They do not contain the outermost Cell.

_WRAPPERS: Final = "mindspore.common.recompute"
"""The module of the Cells that MindSpore puts around a recomputed Cell."""


class RunningCell(NamedTuple):
    """A running call of a Cell."""

    cell: Any
    path: str
    lists: tuple[Any, ...]
    """Cells between it and the running Cell around it that are never called themselves, such as lists of Cells."""


class Below(NamedTuple):
    """The path from one Cell to another, and the Cells between them."""

    path: str
    lists: tuple[Any, ...]


class Scopes:
    """The running Cells of each thread. If `class_names`, paths contain the names of classes.

    A Cell that runs again while `is_backward()` has the path of its forward call.
    """

    def __init__(self, *, class_names: bool = True, is_backward: Callable[[], bool] = lambda: False) -> None:
        self._class_names = class_names
        self._is_backward = is_backward
        self._forward: dict[int, tuple[weakref.ref[Any], Below]] = {}
        self._here = threading.local()
        self._known: dict[tuple[int, int], tuple[weakref.ref[Any], weakref.ref[Any], Below | None]] = {}

    @property
    def running(self) -> list[RunningCell]:
        """The running calls of this thread, innermost last."""
        found: list[RunningCell] | None = getattr(self._here, "running", None)
        if found is None:
            found = self._here.running = []
        return found

    @property
    def path(self) -> str:
        running = self.running
        return running[-1].path if running else ""

    def cells(self) -> Iterator[Any]:
        """The Cells around an operator that runs now in this thread."""
        for running in self.running:
            yield from running.lists
            yield running.cell

    @contextmanager
    def inside(self, cell: Any) -> Iterator[None]:
        running = self.running
        running.append(self._again(cell) or self._running(cell))
        try:
            yield
        finally:
            running.pop()

    def _again(self, cell: Any) -> RunningCell | None:
        """If the backward pass runs a Cell again, its call with the path from the forward pass; otherwise None."""
        known = self._forward.get(id(cell)) if self._is_backward() else None
        return RunningCell(cell, *known[1]) if known is not None and known[0]() is cell else None

    def _running(self, cell: Any) -> RunningCell:
        found = self._found(cell)
        self._forward[id(cell)] = weakref.ref(cell), Below(found.path, found.lists)
        return found

    def _found(self, cell: Any) -> RunningCell:
        running = self.running
        if type(cell).__module__ == _WRAPPERS and running:
            return RunningCell(cell, running[-1].path, ())
        for outer in reversed(running):
            if outer.cell is cell:  # `super().__call__`, or a Cell that calls itself
                return RunningCell(*outer)
            found = self._below(outer.cell, cell)
            if found is not None:
                path, lists = found
                return RunningCell(cell, f"{outer.path}/{path}" if outer.path else path, lists)
        if not running:
            return RunningCell(cell, "", ())
        return RunningCell(cell, "/".join(part for part in (running[-1].path, type(cell).__name__) if part), ())

    def _below(self, outer: Any, cell: Any) -> Below | None:
        """How one Cell is registered below another; None if it is not."""
        key = (id(outer), id(cell))
        known = self._known.get(key)
        if known is not None and known[0]() is outer and known[1]() is cell:
            return known[2]
        found = next((below for below, inner in self._each(outer, set()) if inner is cell), None)
        self._known[key] = weakref.ref(outer), weakref.ref(cell), found
        return found

    def _each(self, outer: Any, seen: set[int]) -> Iterator[tuple[Below, Any]]:
        """Every Cell below a Cell; direct children come first."""
        seen.add(id(outer))
        inner = [(name, cell) for name, cell in outer._cells.items() if cell is not None and id(cell) not in seen]
        for name, cell in inner:
            yield Below(self._part(name, cell), ()), cell
        for name, cell in inner:
            for below, found in self._each(cell, seen) if id(cell) not in seen else ():
                yield Below(f"{self._part(name, cell)}/{below.path}", (cell, *below.lists)), found

    def _part(self, name: str, cell: Any) -> str:
        return f"{name}-{type(cell).__name__}" if self._class_names else name


# Finds out whether an operator is marked with `set_dump`.


class Marks:
    """The latest mark of the Cells around an operator, and of their classes, takes effect. A marked function selects all operators inside."""

    def __init__(self, program: ProgramMarks) -> None:
        self._program = program
        self._used: set[int] = set()

    def takes(self, cells: Iterable[Any]) -> bool:
        """Whether an operator inside these Cells is selected."""
        found = UNMARKED
        for cell in cells:
            mark = self._program.of_module(cell)
            if mark is not UNMARKED:
                self._used.add(id(cell))
                self._used.update(id(kind) for kind in type(cell).__mro__)
                found = max(found, mark)
        return found.enabled or (bool(self._program.function_names) and self._in_marked_function())

    def _in_marked_function(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            owners = self._program.owners_of(frame.f_code)
            if owners is not None and (None in owners or _called_on(frame) in owners):
                self._used.add(hash(key_of(frame.f_code)))
                return True
            frame = frame.f_back
        return False

    def unused(self) -> list[str]:
        """Warnings about marked targets in which no operator ran."""
        if not self._program:
            return [
                "set_dump: nothing is marked, and dump_mode 2 dumps only marked operators; call opdump.set_dump(net) in the program"
            ]
        return [
            f"set_dump: no operator ran in {text}, which is marked"
            for target, text in self._program.enabled_targets()
            if (hash(target) if isinstance(target, tuple) else id(target)) not in self._used
        ]


def _called_on(frame: FrameType) -> int:
    """The identity of the first argument of a function."""
    names = frame.f_code.co_varnames
    return id(frame.f_locals.get(names[0])) if names else 0


# The lines of the program that lead to an operator.

_STACKS: Final = ProgramStacks([f"{Path(mindspore.__file__).parent}/"])


def program_frames() -> Stack:
    """The program's lines on the stack of this thread, innermost first."""
    return _STACKS.running(sys._getframe(1))
