"""Functions of other packages that are replaced for a while, and put back as they were."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Replacements:
    """A stack of replaced attributes.

    `restore` leaves alone what someone else has replaced after us: their function calls ours, so a replacement must do
    nothing of its own once it is no longer wanted.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name`; an attribute that `owner` only inherits is deleted again at the end."""
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT), replacement))
        setattr(owner, name, replacement)

    def restore(self) -> None:
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name, _ABSENT) is not replacement:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
