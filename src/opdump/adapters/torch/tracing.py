"""Tracing and export: programs that are being written down, not run.

While `torch.jit.trace`, `torch.export.export`, `make_fx`, `torch.fx.symbolic_trace`, `torch._dynamo.export` or
`torch.onnx.export` work, recording is suspended in their thread: nothing of what they run belongs to the step, and
`torch.jit.trace` of a function fails under any dispatch mode.

The functions replaced are those that the public ones look up each time they are called, so it does not matter who imported
the public ones when. Transforms that compute (`torch.func.vmap`, `grad`, `jvp`, `torch.jit.script`ed functions) are not
among them: below them a dispatch mode sees plain tensors, so they are recorded as the operators that they run.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from opdump.adapters.replacements import Replacements

from .mode_stack import suspended

_TRACERS = (
    ("torch.jit._trace", "_trace_impl"),  # all of torch.jit.trace
    ("torch.jit._trace", "trace_module"),
    ("torch.jit", "trace_module"),
    ("torch.jit._trace", "_get_trace_graph"),
    ("torch.jit", "_get_trace_graph"),
    ("torch.export._trace", "_export"),
    ("torch.export._trace", "_export_for_training"),
    ("torch.export.exported_program", "_decompose_exported_program"),
    ("torch.fx.experimental.proxy_tensor", "_MakefxTracer.trace"),
    ("torch.fx._symbolic_trace", "Tracer.trace"),
    ("torch.onnx", "export"),
)


class SuspendedTracing:
    """Suspends recording while something is traced or exported, from `attach` to `detach`."""

    def __init__(self) -> None:
        self._replacements = Replacements()

    def attach(self) -> None:
        for module, path in _TRACERS:
            *outer, name = path.split(".")
            owner: Any = importlib.import_module(module)
            for part in outer:
                owner = getattr(owner, part, None)
            # Releases of PyTorch differ in which of these they have; a tracer that is missing traces nothing.
            if hasattr(owner, name):
                self._replacements.replace(owner, name, run_suspended(getattr(owner, name)))

    def detach(self) -> None:
        self._replacements.restore()


def run_suspended(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with recording suspended in the calling thread while it runs."""

    @functools.wraps(function)
    def tracer(*args: Any, **kwargs: Any) -> Any:
        with suspended():
            return function(*args, **kwargs)

    return tracer
