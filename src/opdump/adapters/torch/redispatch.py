"""Continues an operator, intercepted at the dispatch key of threads with modes (`PythonTLSSnapshot`), below that key.

PyTorch's own kernel at that key saves the thread's dispatch state for a dispatch mode further below. Before PyTorch 2.13
the mode cannot be called without it, but a kernel that opdump registers for an operator at that key replaces it. So in
these releases opdump first calls an operator of its own, which passes PyTorch's kernel, and continues from inside it. That
operator is in the namespace `prims`, because only inside operators of that namespace are numbers accepted for tensors
(`prims::mul(x, -1)`), which some intercepted operators rely on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from opdump.adapters.torch.private_names import KEY_OF_THREADS_WITH_MODES, destroy_library, fallthrough_kernel

_NAMESPACE = "prims"
_NAME = "opdump_entry"
NEEDS_ENTRY = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


class Redispatch:
    """Continues intercepted operators, from `attach` to `detach`."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._libraries: list[torch.library.Library] = []

    def attach(self) -> None:
        if NEEDS_ENTRY and not self._libraries:
            library = torch.library.Library(_NAMESPACE, "FRAGMENT")
            self._libraries.append(library)
            library.define(f"{_NAME}() -> ()")
            library.impl(_NAME, self._enter, "CompositeImplicitAutograd")
            library.impl(_NAME, fallthrough_kernel, "Python")

    def detach(self) -> None:
        while self._libraries:
            destroy_library(self._libraries.pop())

    def onward(self, operator: Any, keyset: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the operator below the key of threads with modes."""
        rest = keyset.remove(KEY_OF_THREADS_WITH_MODES)
        if not self._libraries:
            return operator.redispatch(rest, *args, **kwargs)
        results: list[Any] = []
        # `opdump_entry` takes no arguments and returns nothing, so the call and its result pass through the thread.
        self._local.call = lambda: results.append(operator.redispatch(rest, *args, **kwargs))
        torch.ops.prims.opdump_entry()
        return results[0]

    def _enter(self) -> None:
        call = self._local.call
        self._local.call = None
        call()
