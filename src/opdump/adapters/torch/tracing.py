"""Suspends recording during tracing and export.

While `torch.jit.trace`, `torch.export.export`, `make_fx`, `torch.fx.symbolic_trace`, `torch._dynamo.export` or
`torch.onnx.export` run, recording is suspended in their thread: what they execute does not belong to the step, and
`torch.jit.trace` of a function fails under any dispatch mode.

The replaced functions are internal ones that the public functions look up on each call, so earlier imports of the public
functions do not matter. Transforms that compute (`torch.func.vmap`, `grad`, `jvp`, `torch.jit.script`ed functions) are not
replaced: below them a dispatch mode sees plain tensors, so they are recorded as the operators that they run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.loading import Loading
from opdump.adapters.torch.mode_stack import suspended
from opdump.adapters.torch.private_names import TRACERS, LateName


class SuspendedTracing:
    """Suspends recording during tracing and export, from `attach` to `detach`.

    Replacements that still wait for a module are dropped by `loading.forget()`, not by `detach`.
    """

    def __init__(self, loading: Loading) -> None:
        self._replacements = Replacements()
        self._loading = loading

    def attach(self) -> None:
        for tracer in TRACERS:
            self._loading.when_there(tracer.module, functools.partial(self._replace, tracer))

    def detach(self) -> None:
        self._replacements.restore()

    def _replace(self, tracer: LateName) -> None:
        found = tracer.owner()
        if found is not None:
            owner, name = found
            self._replacements.replace(owner, name, run_suspended(getattr(owner, name)))


def run_suspended(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with recording suspended in the calling thread while it runs."""

    @functools.wraps(function)
    def tracer(*args: Any, **kwargs: Any) -> Any:
        with suspended():
            return function(*args, **kwargs)

    return tracer
