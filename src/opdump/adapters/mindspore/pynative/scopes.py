"""Finds the Cells around an operator.

    network(x) runs layers[0].dense        layers-CellList/0-Block/dense-Dense

Paths are those that MindSpore gives to the operators of a compiled network. They do not contain the outermost Cell.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

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
