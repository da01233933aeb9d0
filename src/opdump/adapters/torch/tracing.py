"""Recognises tracing and export: programs that are being written down, not run.

While `torch.jit.trace`, `torch.export.export`, `make_fx`, `torch.fx.symbolic_trace`, `torch._dynamo.export` or
`torch.onnx.export` work, recording is suspended in their thread: nothing of what they run belongs to the step, and
`torch.jit.trace` of a function fails under any dispatch mode.

The functions replaced are those that the public ones look up each time they are called, so it does not matter who imported
the public ones when. Transforms that compute (`torch.func.vmap`, `grad`, `jvp`, `torch.jit.script`ed functions) are not
among them: below them a dispatch mode sees plain tensors, so they are recorded as the operators that they run.
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
    """Suspends recording while something is traced or exported, from `attach` to `detach`. What waits for a module, `loading` forgets."""

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
