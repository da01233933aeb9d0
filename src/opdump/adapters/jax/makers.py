"""Which operator made an array that the program holds, where operators run one by one: JAX gives the program the object that it made.

makers.made("Default/mul-op0", results)
makers.source_of(results[0])          # "Default/mul-op0:0"
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any


class Makers:
    """Those of one step: in the next one the same names are those of other operators."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        """By the identity of arrays. Another object may have it once an array is gone, so the entry goes with it."""
        self._step = -1

    def made(self, op_name: str, results: Sequence[Any], step: int) -> None:
        """An operator has given these arrays."""
        self._begin(step)
        for slot, result in enumerate(results):
            identity = id(result)
            # What is handed on, not made, keeps the first that gave it.
            if self.source_of(result, step) == "":
                self._known[identity] = weakref.ref(result, self._gone(identity)), f"{op_name}:{slot}"

    def source_of(self, value: Any, step: int) -> str:
        """The source of an argument; empty where no operator of the step made it."""
        self._begin(step)
        known = self._known.get(id(value))
        return known[1] if known is not None and known[0]() is value else ""

    def _begin(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._known.clear()

    def _gone(self, identity: int) -> Any:
        known = self._known

        def forget(gone: weakref.ref[Any]) -> None:
            entry = known.get(identity)
            if entry is not None and entry[0] is gone:
                del known[identity]

        return forget
