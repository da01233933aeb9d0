"""Parts of opdump that installed packages add: frameworks, statistics, checks.

    CHECKS = Registry("opdump.checks", {"nan": "opdump.checks.tensor_checks:nan"})
    CHECKS.load("nan")          the object at the target, imported now
    CHECKS.loaded()             all of them; parts that cannot be loaded are left out, and reported once

A registry combines opdump's own table, `name: "module:attribute"`, with the entry points of that group in all installed packages
(see the packaging specification). opdump's own names cannot be replaced. Packages are searched only for names that are not
opdump's own, or if all names are requested.
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
    """A part in the listing. `package` is the name and version of the package that adds it; `reason` is why it is unavailable, or
    empty.
    """

    group: str
    name: str
    target: str
    package: str = ""
    reason: str = ""


class Registry(Generic[Part]):
    """The parts of one kind, by name: opdump's own in the order of the table, then those of packages by name."""

    def __init__(self, group: str, own: Mapping[str, str], *, loaded: Mapping[str, Part] | None = None) -> None:
        """`loaded` has opdump's own parts that need no import."""
        self.group = group
        self._own = own
        self._found: dict[str, Listed] | None = None
        self._refused: list[Listed] = []
        self._loaded: dict[str, Part] = dict(loaded or {})
        self._told: set[str] = set()

    @property
    def own(self) -> tuple[str, ...]:
        """Opdump's own names, without a search for packages."""
        return tuple(self._own)

    def names(self) -> tuple[str, ...]:
        """Every name, whether or not its part can be loaded."""
        return tuple(self._parts())

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._parts()

    def load(self, name: str) -> Part:
        """The part of that name. Raises ExtensionError if that of a package cannot be loaded, and KeyError for an unknown name."""
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
        """All parts that can be loaded. Each of the others causes one warning."""
        for name in self.names():
            reason = self._reason(name)
            if reason and name not in self._told:
                import logging

                self._told.add(name)
                logging.getLogger("opdump").warning("%s; it is ignored", reason)
        return {name: self._loaded[name] for name in self.names() if name in self._loaded}

    def added(self) -> dict[str, Part]:
        """The loaded parts of installed packages only."""
        return {name: part for name, part in self.loaded().items() if name not in self._own}

    def others(self) -> tuple[str, ...]:
        """The names of installed packages only, whether or not their parts can be loaded."""
        return tuple(name for name in self.names() if name not in self._own)

    def listed(self) -> tuple[Listed, ...]:
        """Each part, with the reason if it is unavailable."""
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
                elif (taken.target, taken.package) != (point.value, package):  # one package, found in two ways
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
