"""Which modules `set_dump` chose."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from opdump.errors import CaptureStateError


class Marks:
    """Marked and unmarked modules and classes. False in a boolean context while there are none.

    An instance decides before its class, a class before the classes that it derives from, an inner module before the modules
    around it.
    """

    def __init__(self, targets: Iterable[object] = ()) -> None:
        # The modules are kept alive: an identity must not pass to another module.
        self._modules: dict[int, tuple[nn.Module, bool]] = {}
        self._classes: dict[type, bool] = {}
        for target in targets:
            self.set(target, enabled=True)

    def __bool__(self) -> bool:
        return bool(self._modules or self._classes)

    def set(self, target: object, *, enabled: bool) -> None:
        """Mark or unmark a module, or all modules of a class. Raises `CaptureStateError` for anything else."""
        if isinstance(target, nn.Module):
            self._modules[id(target)] = (target, enabled)
        elif isinstance(target, type) and issubclass(target, nn.Module):
            self._classes[target] = enabled
        else:
            raise CaptureStateError(
                f"a module or a module class can be marked, found {target!r}; give the module itself, e.g. model.layer1"
            )

    def inside(self, module: nn.Module, outside: bool, around: Iterable[nn.Module] = ()) -> bool:
        """Whether what runs in `module` is marked, where what called it is as `outside` says.

        `around` are the modules that it is registered below, outermost first. Most of them run and are in `outside` already;
        lists of modules never run, and modules that are recomputed run without those around them.
        """
        for each in (*around, module):
            outside = self._of(each, outside)
        return outside

    def _of(self, module: nn.Module, default: bool) -> bool:
        mark = self._modules.get(id(module))
        if mark is not None:
            return mark[1]
        for kind in type(module).__mro__:
            if kind in self._classes:
                return self._classes[kind]
        return default
