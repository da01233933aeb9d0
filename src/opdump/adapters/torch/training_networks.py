"""Which networks a program called, and the graphs that they are.

A graph is a network in one mode, training or not, counted in the order of first calls.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .training_scopes import OUTSIDE, RootScopes, class_name, compiled_original, part_name


class Networks:
    """The modules that the program called itself, as long as they live."""

    def __init__(self, *, class_names: bool) -> None:
        self.graphs: list[tuple[str, bool]] = []
        self._class_names = class_names
        self._roots: dict[int, RootScopes] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[nn.Module, RootScopes]]:
        for scopes in list(self._roots.values()):
            module = scopes.reference()
            if module is not None and scopes.network:
                yield module, scopes

    def find(self, module: nn.Module) -> RootScopes | None:
        """The scopes of a module that was called by the program before; None the first time."""
        root = compiled_original(module)
        scopes = self._roots.get(id(root))
        return scopes if scopes is not None and scopes.reference() is root else None

    def add(self, module: nn.Module, *, network: bool, above: str = OUTSIDE) -> RootScopes:
        """The scopes of a module that the program calls for the first time."""
        root = compiled_original(module)
        name = part_name("network", root, self._class_names) if network else class_name(root)
        scopes = RootScopes(root, f"{above}/{name}", network=network, class_names=self._class_names)
        self._roots = {key: known for key, known in self._roots.items() if known.reference() is not None}
        self._roots[id(root)] = scopes
        return scopes

    def add_replica(self, module: nn.Module, original: RootScopes | None) -> RootScopes:
        """The scopes of a copy that `DataParallel` made for one call and runs in a thread."""
        above = OUTSIDE if original is None else original.scope
        scope = f"{above}/{part_name('module', module, self._class_names)}"
        return RootScopes(module, scope, network=False, class_names=self._class_names)

    def owner(self, module: nn.Module, latest: RootScopes | None) -> RootScopes | None:
        """The network that runs `module` again: of several, the latest, and one that it is a part of before itself."""
        known = [*([] if latest is None else [latest]), *reversed(list(self._roots.values()))]
        holders = [scopes for scopes in known if scopes.find(module) is not None]
        return next((scopes for scopes in holders if scopes.reference() is not module), holders[0] if holders else None)

    def graph(self, scopes: RootScopes, training: bool, appears: Callable[[int, str, bool], None]) -> int:
        """The graph of a network in a mode; `appears` is called where it is new."""
        graph_id = scopes.graph_ids.get(training)
        if graph_id is None:
            with self._lock:
                graph_id = scopes.graph_ids[training] = len(self.graphs)
                self.graphs.append((scopes.name, training))
            appears(graph_id, scopes.name, training)
        return graph_id

    def needs_gradients(
        self, scopes: RootScopes, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether a parameter or an input requires a gradient.

        The parameter that did the last time is asked first: large models with few of them are not walked every time.
        """
        remembered = scopes.trained() if scopes.trained is not None else None
        if remembered is not None and remembered.requires_grad:
            return True
        for parameter in module.parameters():
            if parameter.requires_grad:
                scopes.trained = weakref.ref(parameter)
                scopes.trained_version = parameter._version
                return True
        return _requires_grad(args, kwargs)

    def updated(self) -> bool:
        """Whether parameters of any network changed since this was asked the last time; one parameter stands for all."""
        changed = False
        for scopes in list(self._roots.values()):
            parameter = scopes.trained() if scopes.trained is not None else None
            if parameter is not None and parameter._version != scopes.trained_version:
                scopes.trained_version = parameter._version
                changed = True
        return changed


def _requires_grad(*values: Any) -> bool:
    """Whether a tensor in these values, also in lists and dicts, requires a gradient."""
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
