"""Assigns graph numbers to the networks that a program calls.

A graph is a network in one mode (training or not); graphs are numbered in the order of first calls.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from opdump.adapters.torch.private_names import version_of
from opdump.adapters.torch.training_scopes import (
    OUTSIDE,
    RootScopes,
    class_name,
    compiled_original,
    is_network,
    part_name,
    unwrapped,
)
from opdump.adapters.torch.unseen import never_seen

_SNAPSHOTS = sys.version_info < (3, 13)
"""Whether reading a function's locals leaves a copy in its frame, which would keep the program's objects alive."""


class Networks:
    """The modules that the program called directly, as long as they live."""

    def __init__(self, *, class_names: bool) -> None:
        self.graphs: list[tuple[str, bool]] = []
        self._class_names = class_names
        self._roots: dict[int, RootScopes] = {}
        self._parts: dict[int, tuple[weakref.ref[nn.Module], RootScopes | None]] = {}
        """For modules that the program called and that were not networks then: the network that they belong to."""
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[nn.Module, RootScopes]]:
        for scopes in list(self._roots.values()):
            module = scopes.reference()
            if module is not None and scopes.network:
                yield module, scopes

    def find(self, module: nn.Module) -> RootScopes | None:
        """The scopes of a module that the program called before; None the first time."""
        root = compiled_original(module)
        scopes = self._roots.get(id(root))
        return scopes if scopes is not None and scopes.reference() is root else None

    def around(self, module: nn.Module) -> RootScopes | None:
        """The network to which a module belongs that the program calls directly; None without one.

        It is a network with the same parameters, if one wraps the other (`DistributedDataParallel`, FSDP, an adapter), or a
        network whose method is running. It is determined at the first call and then kept.
        """
        part = compiled_original(module)
        known = self._parts.get(id(part))
        if known is not None and known[0]() is part:
            return known[1]
        scopes = next((each for root, each in self if _is_same(root, part) or _is_same(part, root)), None)
        if scopes is None:
            owner = _outermost_owner(part)
            if owner is not None:
                scopes = self.find(owner)
                if scopes is None or not scopes.network:
                    scopes = self.add(owner, network=True)
                if not scopes.contains(part):
                    scopes.refresh()  # it was registered after the last walk
        self._parts = {key: each for key, each in self._parts.items() if each[0]() is not None}
        self._parts[id(part)] = (weakref.ref(part), scopes)
        return scopes

    def add(self, module: nn.Module, *, network: bool, above: str = OUTSIDE) -> RootScopes:
        root = compiled_original(module)
        name = part_name("network", root, self._class_names) if network else class_name(root)
        scopes = RootScopes(root, f"{above}/{name}", network=network, class_names=self._class_names)
        self._roots = {key: known for key, known in self._roots.items() if known.reference() is not None}
        self._roots[id(root)] = scopes
        return scopes

    def add_replica(self, module: nn.Module, original: RootScopes | None) -> RootScopes:
        """The scopes of a copy that `DataParallel` makes for one call and runs in a thread."""
        above = OUTSIDE if original is None else original.scope
        scope = f"{above}/{part_name('module', module, self._class_names)}"
        return RootScopes(module, scope, network=False, class_names=self._class_names)

    def owner(self, module: nn.Module, latest: RootScopes | None) -> RootScopes | None:
        """The network that recomputes `module`: preferably one that contains it, rather than itself, and the latest."""
        known = [*([] if latest is None else [latest]), *reversed(list(self._roots.values()))]
        holders = [scopes for scopes in known if scopes.find(module) is not None]
        return next((scopes for scopes in holders if scopes.reference() is not module), holders[0] if holders else None)

    def graph(self, scopes: RootScopes, training: bool, appears: Callable[[int, str, bool], None]) -> int:
        """The graph of a network in a mode; `appears` is called if it is new."""
        graph_id = scopes.graph_ids.get(training)
        if graph_id is None:
            with self._lock:
                graph_id = scopes.graph_ids[training] = len(self.graphs)
                self.graphs.append((scopes.name, training))
            appears(graph_id, scopes.name, training)
        return graph_id

    @never_seen
    def needs_gradients(
        self, scopes: RootScopes, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether a parameter or an input requires a gradient.

        The parameter that did last time is checked first, so that large models are not walked at every call.
        """
        remembered = scopes.trained() if scopes.trained is not None else None
        if remembered is not None and remembered.requires_grad and compiled_original(module) is scopes.reference():
            return True
        whole = compiled_original(module) is scopes.reference()
        for parameter in module.parameters():
            if parameter.requires_grad:
                if whole or remembered is None:
                    scopes.trained = weakref.ref(parameter)
                    scopes.trained_version = version_of(parameter)
                return True
        return _requires_grad(args, kwargs)

    @never_seen
    def updated(self) -> bool:
        """Whether parameters of any network changed since the last call; one parameter per network is checked."""
        changed = False
        for scopes in list(self._roots.values()):
            parameter = scopes.trained() if scopes.trained is not None else None
            if parameter is not None and version_of(parameter) != scopes.trained_version:
                scopes.trained_version = version_of(parameter)
                changed = True
        return changed


def _is_same(outer: nn.Module, inner: nn.Module) -> bool:
    """Whether `outer` only wraps `inner`: it contains `inner` and has no other parameters."""
    if inner in unwrapped(outer)[1:]:
        return True
    if all(part is not inner for part in outer.modules()):
        return False
    inside = {id(parameter) for parameter in inner.parameters()}
    return bool(inside) and all(id(parameter) in inside for parameter in outer.parameters())


def _requires_grad(*values: Any) -> bool:
    """Whether a tensor in these values, or in lists and dicts of them, requires a gradient."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(value.values())
    return False


def _outermost_owner(module: nn.Module) -> nn.Module | None:
    """The outermost module that contains `module` and has a running method; None without one.

    PyTorch modules have no parents, so running methods are searched: `training_step` of a LightningModule calls
    `self.net(x)`. This happens once per module that the program calls, not per call.
    """
    original = compiled_original(module)
    found: nn.Module | None = None
    seen: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = _first_argument(frame)
        if isinstance(owner, nn.Module) and id(owner) not in seen:
            seen.add(id(owner))
            around = compiled_original(owner) is not original and any(part is original for part in owner.modules())
            if around and is_network(owner):
                found = owner
        frame = frame.f_back
    return found


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    if code.co_argcount == 0 or code.co_varnames[0] != "self":
        return None
    values = frame.f_locals
    owner = values.get("self")
    # Three references: the frame's, `values`, and `getrefcount`'s argument. If more, the program itself keeps its locals.
    if _SNAPSHOTS and sys.getrefcount(values) == 3:
        values.clear()
    return owner
