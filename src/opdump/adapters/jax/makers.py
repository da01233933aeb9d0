"""Finds the operator that made an array, for operators that run one by one. The program passes on the array object that JAX returned.

makers.made("Default/mul-op0", results, step)
makers.source_of(results[0], step)          # "Default/mul-op0:0"
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any


class Makers:
    """The makers of one step. In the next step the same names belong to other operators."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        """By the identity of an array. The entry is removed with the array, because another object may then get the same identity."""
        self._step = -1

    def made(self, op_name: str, results: Sequence[Any], step: int) -> None:
        """Note that an operator returned these arrays."""
        self._begin(step)
        for slot, result in enumerate(results):
            identity = id(result)
            # An array that is only passed on keeps its first maker.
            if self.source_of(result, step) == "":
                self._known[identity] = weakref.ref(result, self._gone(identity)), f"{op_name}:{slot}"

    def source_of(self, value: Any, step: int) -> str:
        """The source of an argument; empty if no operator of the step made it."""
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
            # A new array may already have the identity, and its own entry.
            entry = known.get(identity)
            if entry is not None and entry[0] is gone:
                del known[identity]

        return forget
