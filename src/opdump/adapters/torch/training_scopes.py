"""Names modules in full operator names.

    Default/network-LeNet                            the module that the program calls
    Default/network-LeNet/conv1-Conv2d               its attribute `conv1`
    Default/network-GPT/layers-ModuleList/0-Block    each level of the registered path
    Default/network-GPT/Rotary                       called, but not registered under the root
    Default/CrossEntropyLoss                         has no parameters and was called outside every network
    Default/network-DataParallel/module-Net          a replica, which runs in a thread of its own

If a module is registered twice, the first path is used. With `class_names=False` names read `Default/network/conv1`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.fx import GraphModule

from opdump.adapters.torch.private_names import WRAPPED, children_of

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
