"""Parts of opdump that installed packages add: frameworks, statistics, checks.

    CHECKS = Registry("opdump.checks", {"nan": "opdump.checks.tensor_checks:nan"})
    CHECKS.load("nan")          what stands at the target, imported now
    CHECKS.loaded()             all of them; what cannot be loaded is left out, and told once

A registry is a table of opdump's own, `name: "module:attribute"`, and the entry points of that group of every installed package, as
the packaging specification has them. opdump's own names cannot be taken. Packages are looked at only where a name is not opdump's own,
or where all of them are asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from opdump.errors import ExtensionError

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Listed:
    """A part as it is listed. `package` is the name and version of the package that adds it; `reason` is why it cannot be had, or empty."""

    group: str
    name: str
    target: str
    package: str = ""
    reason: str = ""


class Registry(Generic[Part]):
    """The parts of one kind, by name: opdump's own first, in the order of the table, then those of packages by their names."""

    def __init__(self, group: str, own: Mapping[str, str], *, loaded: Mapping[str, Part] | None = None) -> None:
        """`loaded` has opdump's own parts that need not be imported first."""
        self.group = group
        self._own = own
        self._found: dict[str, Listed] | None = None
        self._refused: list[Listed] = []
        self._loaded: dict[str, Part] = dict(loaded or {})
        self._told: set[str] = set()

    @property
    def own(self) -> tuple[str, ...]:
        """Opdump's own names: to ask for these, nobody looks for packages."""
        return tuple(self._own)

    def names(self) -> tuple[str, ...]:
        """Every name, whether or not what it stands for can be loaded."""
        return tuple(self._parts())

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._parts()

    def load(self, name: str) -> Part:
        """What the name stands for. Raises ExtensionError where a package's part cannot be loaded, KeyError for a name of none."""
        if name not in self._loaded:
            own = self._own.get(name)
            part = self._parts()[name] if own is None else Listed(self.group, name, own)
            try:
                self._loaded[name] = _at(part.target)
            except Exception as error:
                if not part.package:
                    raise
                raise ExtensionError(
                    f"{name!r} of {part.package} ({self.group}: {part.target}) cannot be loaded: {type(error).__name__}: {error}"
                ) from error
        return self._loaded[name]

    def loaded(self) -> dict[str, Part]:
        """All that can be loaded. Of the rest a warning is given, once."""
        for name in self.names():
            reason = self._reason(name)
            if reason and name not in self._told:
                import logging

                self._told.add(name)
                logging.getLogger("opdump").warning("%s; it is left out", reason)
        return {name: self._loaded[name] for name in self.names() if name in self._loaded}

    def added(self) -> dict[str, Part]:
        """The same of installed packages alone."""
        return {name: part for name, part in self.loaded().items() if name not in self._own}

    def others(self) -> tuple[str, ...]:
        """The names of installed packages alone, whether or not what they stand for can be loaded."""
        return tuple(name for name in self.names() if name not in self._own)

    def listed(self) -> tuple[Listed, ...]:
        """Each part, with the reason of those that cannot be had."""
        return (*(replace(part, reason=self._reason(name)) for name, part in self._parts().items()), *self._refused)

    def _reason(self, name: str) -> str:
        try:
            self.load(name)
        except (ExtensionError, ImportError) as error:
            return str(error)
        return ""

    def _parts(self) -> dict[str, Listed]:
        if self._found is None:
            from importlib.metadata import entry_points

            found = {name: Listed(self.group, name, target) for name, target in self._own.items()}
            for point in sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value)):
                package = "another package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
                taken = found.get(point.name)
                if taken is None:
                    found[point.name] = Listed(self.group, point.name, point.value, package)
                elif (taken.target, taken.package) != (point.value, package):  # one package, found by two ways
                    reason = f"the name is taken by {taken.package or 'opdump'}"
                    self._refused.append(Listed(self.group, point.name, point.value, package, reason))
            self._found = found
        return self._found


def _at(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in attribute.split(".") if attribute else ():
        found = getattr(found, name)
    return found
