"""Continues an operator that was caught at the key of threads with modes, below that key.

At that key PyTorch's own kernel keeps what the thread had switched on, for the dispatch mode that may come further below. Before
PyTorch 2.13 the mode cannot be called without it, and where an operator has a kernel of ours there, PyTorch's does not run. So there
an operator of our own is called first, which passes PyTorch's kernel, and goes on from inside that one. It is named as one of `prims`,
since operators that are called inside one of those alone take numbers for tensors (`prims::mul(x, -1)`), as some did that were caught.
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
    """Goes on with operators, from `attach` to `detach`."""

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
        """Runs the operator below the key of threads with modes."""
        rest = keyset.remove(KEY_OF_THREADS_WITH_MODES)
        if not self._libraries:
            return operator.redispatch(rest, *args, **kwargs)
        results: list[Any] = []
        self._local.call = lambda: results.append(operator.redispatch(rest, *args, **kwargs))
        torch.ops.prims.opdump_entry()
        return results[0]

    def _enter(self) -> None:
        call = self._local.call
        self._local.call = None
        call()
