"""Functions of other packages that are replaced for a while, and put back as they were."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

_ABSENT = object()


class Replacements(AbstractContextManager["Replacements"]):
    """A stack of replaced attributes; as a context it restores them at its end.

    `restore` leaves alone what someone else has replaced after us: their function calls ours, so a replacement must do
    nothing of its own once it is no longer wanted.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name`; an attribute that `owner` only inherits is deleted again at the end."""
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT), replacement))
        setattr(owner, name, replacement)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name, _ABSENT) is not replacement:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
