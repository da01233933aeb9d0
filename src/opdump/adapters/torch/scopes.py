"""Where in the program an operator runs: the names of modules, whether `set_dump` selects it, and the position of a thread."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import GraphModule

from opdump.adapters.program_marks import UNMARKED, Mark, ProgramMarks, key_of
from opdump.adapters.torch.private_names import WRAPPED, children_of
from opdump.records import Frame

# Names modules in full operator names.
#
#     Default/network-LeNet                            the module that the program calls
#     Default/network-LeNet/conv1-Conv2d               its attribute `conv1`
#     Default/network-GPT/layers-ModuleList/0-Block    each level of the registered path
#     Default/network-GPT/Rotary                       called, but not registered under the root
#     Default/CrossEntropyLoss                         has no parameters and was called outside every network
#     Default/network-DataParallel/module-Net          a replica, which runs in a thread of its own
#
# If a module is registered twice, the first path is used. With `class_names=False` names read `Default/network/conv1`.

OUTSIDE = "Default"
WRAPPERS = ("DistributedDataParallel", "DataParallel")
"""Classes that wrap one model, in their attribute `module`."""


def compiled_original(module: nn.Module) -> nn.Module:
    """The module itself, or the one that `torch.compile(module)` wraps, so that compiling a model changes no names."""
    # isinstance would need torch._dynamo, whose import takes a second; class name and only child identify its wrapper.
    while type(module).__name__ == "OptimizedModule" and WRAPPED in children_of(module):
        original = children_of(module)[WRAPPED]
        if original is None:
            break
        module = original
    return module


def unwrapped(module: nn.Module) -> list[nn.Module]:
    """A root module and the modules that it wraps (`DistributedDataParallel`), outermost first, without `torch.compile`."""
    found = [compiled_original(module)]
    while type(found[-1]).__name__ in WRAPPERS and (inner := children_of(found[-1]).get("module")) is not None:
        found.append(compiled_original(inner))
    return found


def class_name(module: nn.Module) -> str:
    """The name of the class that the user wrote; scripted and traced modules remember it."""
    name = getattr(module, "original_name", None) if isinstance(module, torch.jit.ScriptModule) else None
    return (name or type(module).__name__).replace("/", "_")


def is_network(module: nn.Module) -> bool:
    """Whether a module that the program calls is a model, not a loss, an activation or a data transform.

    A model has parameters, or packed weights if it is a converted quantised model.
    """
    if next(module.parameters(), None) is not None:
        return True
    return any(".nn.quantized" in type(part).__module__ for part in module.modules())


def part_name(name: str, module: nn.Module, class_names: bool) -> str:
    """One level of a scope. Slashes separate levels, so a slash in a name becomes an underscore.

    MindSpore Insight splits full names at `-op`, which begins the number of an operator, so a class named `opBlock` is
    written `OpBlock`.
    """
    text = name.replace("/", "_")
    return (f"{text}-{class_name(module)}" if class_names else text).replace("-op", "-Op")


class RootScopes:
    """The scopes of all modules under one root, by identity. It does not keep the modules alive.

    `registered` is read at every module call, so it is a plain dict from `id(module)` to the scope.
    """

    __slots__ = (
        "__weakref__",
        "_borrowed",
        "_class_names",
        "_loose",
        "_parents",
        "_references",
        "graph_ids",
        "network",
        "reference",
        "registered",
        "scope",
        "trained",
        "trained_version",
    )

    def __init__(self, module: nn.Module, scope: str, *, network: bool, class_names: bool) -> None:
        self.network = network
        self.scope = scope
        self.reference = weakref.ref(module)
        self.graph_ids: dict[bool, int] = {}
        # A parameter that requires a gradient, and its version counter at the last check.
        self.trained: weakref.ref[nn.Parameter] | None = None
        self.trained_version = 0
        self.registered: dict[int, str] = {}
        self._borrowed: dict[int, str] = {}
        self._loose: dict[int, str] = {}
        self._parents: dict[int, int] = {}
        self._references: dict[int, weakref.ref[nn.Module]] = {}
        self._class_names = class_names
        self.refresh()

    @property
    def name(self) -> str:
        return self.scope.rpartition("/")[2]

    def refresh(self) -> None:
        """Walk the root again, because modules were added or renamed."""
        root = self.reference()
        self.registered.clear()
        if root is not None:
            for module, scope in self._walk(root, self.scope):
                self.registered[id(module)] = scope

    def find(self, module: nn.Module) -> str | None:
        """The scope of a module of this root, whether or not the root is running; else None."""
        key = id(module)
        return self.registered.get(key) or self._borrowed.get(key)

    def contains(self, module: nn.Module) -> bool:
        return id(module) in self.registered

    def whole(self, module: nn.Module) -> nn.Module:
        """The root, if the program called a part of it; else `module`."""
        root = self.reference()
        return module if root is None or compiled_original(module) is root else root

    def around(self, module: nn.Module) -> list[nn.Module]:
        """The modules below which `module` is registered, outermost first, including lists of modules, which never run."""
        found: list[nn.Module] = []
        key = self._parents.get(id(module))
        while key is not None:
            reference = self._references.get(key)
            parent = reference() if reference is not None else None
            if parent is not None:
                found.append(parent)
            key = self._parents.get(key)
        return found[::-1]

    def enter_unregistered(self, module: nn.Module, current: str, *, walked: bool) -> str:
        """The scope of a called module that is not in `registered`, below the scope of its caller.

        `walked`: `refresh` was already called in this run of the root. Modules below an unregistered one have their
        registered path from there.
        """
        key = id(module)
        if key not in self._borrowed and not walked:
            self.refresh()
            if key in self.registered:
                return self.registered[key]
        if key not in self._loose:
            borrowed = self._borrowed.get(key)
            if borrowed is not None and borrowed.startswith(current + "/"):
                return borrowed  # a child of an unregistered module that is running
        # Graphs of compilers and tracers are not modules of the user, so they add no level.
        machinery = isinstance(module, GraphModule)
        scope = current if machinery else f"{current}/{class_name(module)}"
        if self._loose.get(key) != scope:
            for part, part_scope in self._walk(module, scope):
                self._borrowed[id(part)] = part_scope
            self._loose[key] = scope
        return scope

    def _walk(self, top: nn.Module, scope: str) -> Iterator[tuple[nn.Module, str]]:
        """Each module at or below `top` once, with the scope of its first registered path, parents first."""
        seen: set[int] = set()
        pending: list[tuple[nn.Module, str, nn.Module | None]] = [(top, scope, None)]
        while pending:
            module, scope, parent = pending.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            self._watch(module)
            if parent is not None:
                self._parents[id(module)] = id(parent)
            yield module, scope
            original = compiled_original(module)
            if original is not module:
                pending.append((original, scope, module))
                continue
            # Reversed, because popping from the stack then follows the order of registration.
            for name, child in reversed(list(children_of(module).items())):
                if child is not None:
                    shown = compiled_original(child)
                    pending.append((child, f"{scope}/{part_name(name, shown, self._class_names)}", module))

    def _watch(self, module: nn.Module) -> None:
        """Forget the module's identity when it is freed, because a new object may get the same one."""
        key = id(module)
        if key not in self._references:
            myself = weakref.ref(self)  # so that a long-lived module does not keep these scopes alive

            def forget(_: object) -> None:
                scopes = myself()
                if scopes is not None:
                    for table in (
                        scopes.registered,
                        scopes._borrowed,
                        scopes._loose,
                        scopes._parents,
                        scopes._references,
                    ):
                        table.pop(key, None)

            self._references[key] = weakref.ref(module, forget)


# Finds the operators that `set_dump` selects, by the modules and functions that they run in.
#
#     inside = Enclosing(module, scopes, around)     one running call of a module, and the call around it
#     spot = marks.spot(inside, frame)               where an operator runs
#     marks.takes(spot)                              whether it is marked now
#
# Marks can change while a program runs. The result for a spot is cached until a mark changes. The gradient of an operator uses the
# operator's spot.


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


# The position of one thread of a training program.

Phase = Literal["forward", "optimizer"]


class Running:
    """A running call of a module or an optimizer. `frame` is the identity of its frame, `outer` the call around it."""

    __slots__ = ("callers", "frame", "outer")

    def __init__(self, frame: int, outer: Running | None) -> None:
        self.frame = frame
        self.outer = outer
        self.callers: Sequence[Frame] | None = None
        """The lines of the program that lead to it; None until they are read."""


@dataclass(slots=True, eq=False)
class Position:
    """Plain attributes, because they are read for every operator.

    scope          of the innermost running module or optimizer; "Default" outside
    phase          "optimizer" inside `optimizer.step`, except in its closure; "forward" everywhere else
    graph_id       of the running network; outside, of the one that was called last
    call_id        increases with every call of a network, every outermost `optimizer.step` and every recomputation;
                   outside, that of the network that was called last
    enclosing      the innermost running call of a module if marks are tracked; else None
    recomputing    whether a module runs again within backward (activation checkpointing)
    running        the innermost running call of a module or an optimizer; None outside

    The others are for the observer: `root` is the running network, `top` a running module that is not a network and was
    called outside every network, `network_call` the value that `call_id` returns to, `suspended` the number of open
    `suspended()` blocks, `updating` whether `GradScaler.update` runs.
    """

    graph_id: int
    call_id: int
    network_call: int
    scope: str = OUTSIDE
    phase: Phase = "forward"
    enclosing: Enclosing | None = None
    recomputing: bool = False
    running: Running | None = None
    suspended: int = 0
    updating: bool = False
    root: RootScopes | None = None
    top: RootScopes | None = None
    refreshed: bool = False  # whether the modules of the root were walked during its current call
    optimizers: list[RunningOptimizer] = field(default_factory=list)


class RunningOptimizer:
    """An `optimizer.step` that has not returned, run by `frame`, and the position to restore when it does."""

    __slots__ = ("around", "counts", "frame", "phase", "scope")

    def __init__(self, frame: FrameType, position: Position, *, counts: bool) -> None:
        self.frame = frame
        self.counts = counts
        self.scope, self.phase, self.around = position.scope, position.phase, position.running

    def restore(self, position: Position) -> None:
        position.scope, position.phase, position.running = self.scope, self.phase, self.around
        if not position.optimizers:
            position.call_id = position.network_call
