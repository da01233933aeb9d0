"""Lists the names by which a configuration may select an operator.

    Default/network-LeNet/conv1-Conv2d/convolution-op0    its full name
    convolution-op0                                       the last component
    Default/network-LeNet/conv1-Conv2d                    the scope of a module: every operator that ran in it
    conv1                                                 the same module as `named_modules()` spells it

The first two names select one operator. The name of a module also selects the operators of its submodules and of its
gradients. A module that was called as one operator (`dump_level` op) has the names of the module.

A module that is registered in two places has both names. The component that a wrapper adds (`module.` of
DistributedDataParallel, `_orig_mod.` of torch.compile, those of FSDP and of checkpoints) is optional.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import nn

from opdump.adapters.torch.private_names import WRAPPED, WRAPPED_BY_OTHERS, children_of
from opdump.adapters.torch.sites import GRADIENTS
from opdump.adapters.torch.training_scopes import WRAPPERS, RootScopes, compiled_original

_ROOT = 2
"""Components above the modules of a network: `Default/network-LeNet`."""
_ADDED = WRAPPED_BY_OTHERS | {WRAPPED}
"""The attribute in which a wrapper keeps the wrapped module."""
_MOST_PATHS = 200_000
"""Limits the search: if shared modules contain shared modules, the number of paths grows exponentially."""


class OperatorNames:
    """Collects the paths of the modules of the networks that ran."""

    def __init__(self) -> None:
        self._paths: dict[str, set[str]] = {}
        """Paths of modules, by scope."""
        self._roots: dict[int, tuple[weakref.ref[nn.Module], RootScopes, int]] = {}
        """Networks, with the number of modules that each had when its paths were read."""
        self._names: dict[str, frozenset[str]] = {}

    def learn(self, root: nn.Module, scopes: RootScopes) -> None:
        """Read the modules of a network that is called, the first time and when modules were added since."""
        known = self._roots.get(id(scopes))
        if known is not None and known[2] == len(scopes.registered):
            return
        self._roots[id(scopes)] = (weakref.ref(root), scopes, len(scopes.registered))
        self._names.clear()
        for module, path in _all_paths(root):
            scope = scopes.registered.get(id(module)) or scopes.registered.get(id(compiled_original(module)))
            if scope is not None and path:
                self._paths.setdefault(scope, set()).update(path)

    def of(self, op_name: str) -> frozenset[str]:
        """Every name that selects the operator with this full name."""
        names = self._names.get(op_name)
        if names is None:
            for reference, scopes, _ in list(self._roots.values()):
                root = reference()
                if root is not None:
                    self.learn(root, scopes)  # modules may have been added during this call
            names = self._names[op_name] = self._read(op_name)
        return names

    def _read(self, op_name: str) -> frozenset[str]:
        own = op_name.removeprefix(GRADIENTS)
        last = own.rpartition("/")[2]
        names = {op_name, last, op_name.rpartition("/")[0]}
        parts = own.split("/")
        deepest = len(parts) if own in self._paths else len(parts) - 1
        for end in range(min(_ROOT, deepest), deepest + 1):
            above = "/".join(parts[:end])
            names.add(above)
            names.update(self._paths.get(above) or _spelled(parts[_ROOT:end]))
        names.discard("")
        return frozenset(names)


def _spelled(parts: list[str]) -> Iterator[str]:
    """The path of an unregistered module, from its scope: a component is `conv1-Conv2d` or just `conv1`."""
    if parts:
        yield ".".join(part.rpartition("-")[0] or part for part in parts)


def _all_paths(root: nn.Module) -> Iterator[tuple[nn.Module, set[str]]]:
    """Every module below `root`, once per place of registration, with the spellings of that place."""
    original = compiled_original(root)
    first = {""} if original is root else {"", WRAPPED}
    pending: list[tuple[nn.Module, set[str], tuple[int, ...]]] = [(original, first, (id(original),))]
    number = 0
    while pending and number < _MOST_PATHS:
        module, paths, above = pending.pop()
        number += 1
        yield module, paths - {"", WRAPPED}
        is_wrapper = type(module).__name__ in WRAPPERS
        for name, child in reversed(list(children_of(module).items())):
            if child is None or id(child) in above:
                continue
            spelled = {f"{path}.{name}" if path else name for path in paths}
            if name in _ADDED or (is_wrapper and name == "module"):
                spelled |= paths
            pending.append((child, spelled, (*above, id(child))))
