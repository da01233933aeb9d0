"""Finds the operators that `set_dump` selects, by the modules and functions that they run in.

    inside = Enclosing(module, scopes, around)     one running call of a module, and the call around it
    spot = marks.spot(inside, frame)               where an operator runs
    marks.takes(spot)                              whether it is marked now

Marks can change while a program runs. The result for a spot is cached until a mark changes. The gradient of an operator uses the
operator's spot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch import nn

from opdump.adapters.program_marks import UNMARKED, Mark, ProgramMarks, key_of
from opdump.adapters.torch.training_scopes import RootScopes, compiled_original


@dataclass(slots=True, eq=False)
class Enclosing:
    """A running call of a module. `scopes` knows the parents of the module; `outer` is the call around it."""

    module: nn.Module
    scopes: RootScopes | None
    outer: Enclosing | None
    mark: Mark = UNMARKED
    version: int = -1

    def modules(self) -> Iterator[nn.Module]:
        """The module and those around it, innermost first, including lists of modules, which never run."""
        call: Enclosing | None = self
        while call is not None:
            yield from call.own_modules()
            call = call.outer

    def own_modules(self) -> list[nn.Module]:
        """The module and its parents, innermost first.

        Most parents also run and are in `outer`. But lists of modules never run, and a recomputed module runs without its parents.
        """
        around = [] if self.scopes is None else self.scopes.around(self.module)
        return [*(compiled_original(module) for module in reversed([*around, self.module]))]


@dataclass(slots=True, eq=False)
class Spot:
    """Where an operator runs: the innermost running call of a module and the functions on the stack."""

    enclosing: Enclosing | None
    codes: frozenset[CodeType]
    frame_marked: bool
    """Whether a marked function was running when the operator ran. A method that is marked only for another object is not in `codes`."""
    marked: bool = False
    version: int = -1


class DumpSelection:
    """Looks up what the program has marked so far.

    If several marks apply to the modules that an operator runs in, or to their classes, the latest decides. An operator in a marked
    function is also selected.
    """

    def __init__(self, program: ProgramMarks | None = None) -> None:
        self.program = ProgramMarks() if program is None else program
        self.used: set[object] = set()
        """Marked modules and classes (by identity) and functions (by key) in which an operator ran."""
        self._missed_modules: dict[int, nn.Module] = {}
        self._missed_codes: set[CodeType] = set()
        self._reported: set[object] = set()

    def spot(self, enclosing: Enclosing | None, frame: FrameType | None) -> Spot:
        codes = set()
        frame_marked = False
        names = self.program.function_names
        while frame is not None:
            code = frame.f_code
            if code.co_name not in names or self.program.owners_of(code) is None:
                codes.add(code)
            elif self._is_marked(frame):
                codes.add(code)
                frame_marked = True
            frame = frame.f_back
        return Spot(enclosing, frozenset(codes), frame_marked)

    def takes(self, spot: Spot) -> bool:
        version = self.program.version
        if spot.version != version:
            first = spot.version < 0
            by_function = spot.frame_marked if first else self._by_function(spot)
            spot.marked = self.is_chosen(spot.enclosing) or by_function
            spot.version = version
        return spot.marked

    def is_chosen(self, enclosing: Enclosing | None) -> bool:
        return self._latest(enclosing).enabled

    def passed_by(self, spot: Spot) -> None:
        """Note that an operator of this step was left out at `spot`."""
        if spot.enclosing is not None and id(spot.enclosing.module) not in self._missed_modules:
            for module in spot.enclosing.modules():
                self._missed_modules[id(module)] = module
        self._missed_codes |= spot.codes

    def next_step(self) -> None:
        self._missed_modules.clear()
        self._missed_codes.clear()

    def is_late(self, target: Any) -> bool:
        """Whether operators of a target just marked were left out of the running step; true once for each target."""
        target_key = key_of(target.__code__) if hasattr(target, "__code__") else id(target)
        if isinstance(target, type):
            late = any(isinstance(module, target) for module in self._missed_modules.values())
        elif hasattr(target, "__code__"):
            late = any(key_of(code) == target_key for code in self._missed_codes)
        else:
            late = id(target) in self._missed_modules
        if not late or target_key in self._reported:
            return False
        self._reported.add(target_key)
        return True

    def unused(self) -> list[str]:
        """Descriptions of the marked targets in which no operator ran."""
        return [
            text
            for target, text in self.program.enabled_targets()
            if (target if isinstance(target, tuple) else id(target)) not in self.used
        ]

    def _latest(self, enclosing: Enclosing | None) -> Mark:
        if enclosing is None:
            return UNMARKED
        if enclosing.version != self.program.version:
            found = self._latest(enclosing.outer)
            for module in enclosing.own_modules():
                own = self.program.of_module(module)
                if own is not UNMARKED:
                    self.used.add(id(module))
                    self.used.update(id(kind) for kind in type(module).__mro__)
                found = max(found, own)
            enclosing.mark = found
            enclosing.version = self.program.version
        return enclosing.mark

    def _is_marked(self, frame: FrameType) -> bool:
        owners = self.program.owners_of(frame.f_code)
        if owners is None:
            return False
        if None not in owners and not _is_called_on(frame, owners):
            return False
        self.used.add(key_of(frame.f_code))
        return True

    def _by_function(self, spot: Spot) -> bool:
        found = [key_of(code) for code in spot.codes if self.program.owners_of(code) is not None]
        self.used.update(found)
        return bool(found)


def _is_called_on(frame: FrameType, owners: Iterable[object]) -> bool:
    """Whether the first argument of the function is one of these objects."""
    names = frame.f_code.co_varnames
    own = frame.f_locals.get(names[0]) if names else None
    return own is not None and id(own) in owners
