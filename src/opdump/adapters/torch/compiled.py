"""Records compiled code: each graph that `torch.compile` made is one operator and runs unchanged.

    compiled_forward           inputs: what the graph reads (parameters, activations); outputs: what it returns
    compiled_forward_backward  inputs: saved tensors, then the gradients of the outputs; outputs: gradients

The graphs are wrapped, not the compiled function: at a graph break, parts of the function run eagerly between two graphs, and their
operators are recorded like any others.

* Forward: dynamo stores each compiled graph in the globals of the function that it compiled, as `__compiled_fn_...`, through
  `CleanupHook`, and the rewritten bytecode calls it from there. These globals are wrapped: those that already exist
  (`CleanupManager` lists them) and those that dynamo makes while the capture is attached.
* Backward: AOTAutograd calls `_AutogradBackwardCompiler.get_or_compile` each time that it runs a compiled backward, so a wrapper
  is returned there. The backend "eager" has no compiled backward: autograd runs plain operators, which are recorded one by one.

`RecordingMode` lets dynamo compile under a dispatch mode. All names used here are private to PyTorch. If a release lacks one, its graphs
are not wrapped, and the operators inside are recorded one by one.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from types import CodeType
from typing import Any

import torch

from opdump.adapters.replacements import Replacements, ReplacingPart
from opdump.adapters.torch.isolation import never_compile, never_compile_package
from opdump.adapters.torch.mode_stack import (
    Loading,
    RecordingMode,
    put_on,
    recording_here,
    recording_modes,
    suspended,
    take_off,
)
from opdump.adapters.torch.private_names import (
    BOXED,
    CALL_AT_RUN_TIME,
    EXPORTERS,
    GUARDS_SEE_MODES,
    RUN_BACKWARD,
    SET_EVALUATION,
    TRACERS,
    LateName,
    backward_compiler,
    cache_entries,
    cleanup_hook,
    cleanup_manager,
    compiled_inputs,
    dispatch_depth,
    evaluate_frames_by,
    graph_task,
    is_autograd_compiled,
    library_wrappers,
    module_of_evaluation,
    original_of,
    run_backward,
    run_time_wrappers,
    set_evaluation,
    stance,
    version_of,
    wrappers_of_compiled,
)
from opdump.interpreter.frames import PACKAGE

# Suspends recording during tracing and export.
#
# While `torch.jit.trace`, `torch.export.export`, `make_fx`, `torch.fx.symbolic_trace`, `torch._dynamo.export` or
# `torch.onnx.export` run, recording is suspended in their thread: what they execute does not belong to the step, and
# `torch.jit.trace` of a function fails under any dispatch mode.
#
# The replaced functions are internal ones that the public functions look up on each call, so earlier imports of the public
# functions do not matter. Transforms that compute (`torch.func.vmap`, `grad`, `jvp`, `torch.jit.script`ed functions) are not
# replaced: below them a dispatch mode sees plain tensors, so they are recorded as the operators that they run.


class SuspendedTracing(ReplacingPart):
    """Suspends recording during tracing and export, from `attach` to `detach`.

    Replacements that still wait for a module are dropped by `loading.forget()`, not by `detach`.
    """

    def __init__(self, loading: Loading) -> None:
        super().__init__()
        self._loading = loading

    def attach(self) -> None:
        for tracer in TRACERS:
            self._loading.when_there(tracer.module, functools.partial(self._replace, tracer))

    def _replace(self, tracer: LateName) -> None:
        found = tracer.owner()
        if found is not None:
            owner, name = found
            self.replace(owner, name, run_suspended(getattr(owner, name)))


def run_suspended(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with recording suspended in the calling thread while it runs."""

    @functools.wraps(function)
    def tracer(*args: Any, **kwargs: Any) -> Any:
        with suspended():
            return function(*args, **kwargs)

    return tracer


# Prevents recompilation at every call of a compiled function, in releases of PyTorch whose guards fail under a dispatch mode.
#
# Before PyTorch 2.10, dynamo creates its guards while no mode is on, but checks them while one is: they fail, and each call compiles again.
# So for these releases, the recording modes are off from the call of a compiled function until it returns. Its graphs are still recorded as
# operators; operators between two graphs, and a backward under compiled autograd, are not.


class CompiledCalls(ReplacingPart):
    """Switches the recording modes off during calls of compiled functions, from `attach` to `detach`, if the release needs it."""

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()

    def attach(self) -> None:
        original, wrappers = set_evaluation(), wrappers_of_compiled()
        if not GUARDS_SEE_MODES or original is None:
            return

        def switching_modes(callback: Any) -> Any:
            caller = sys._getframe(1)
            if caller.f_back is not None and caller.f_code.co_filename.startswith(PACKAGE):
                caller = caller.f_back  # skip the wrapper that `calls` installed around this one
            if caller.f_code not in wrappers:
                return original(callback)
            if callable(callback):
                self._leave()
                return original(callback)
            previous = original(callback)
            self._return()
            return previous

        run = run_backward()

        def backward(*args: Any, **kwargs: Any) -> Any:
            # A compiled backward raises under a mode.
            with suspended() if is_autograd_compiled() else nullcontext():
                return run(*args, **kwargs)

        if run is not None:
            self.replace(torch.autograd, RUN_BACKWARD, backward)
        self.replace(module_of_evaluation(), SET_EVALUATION, switching_modes)
        never_compile(switching_modes.__code__)

    def records(self) -> bool:
        """Whether the calling thread runs a compiled function that was called while a mode was recording."""
        return any(mode.recording for mode in self._away())

    def pause(self) -> Any:
        """Stop the compiler from inspecting frames of this thread; pass the result to `go_on`. Later releases skip our frames by code."""
        return evaluate_frames_by(None) if GUARDS_SEE_MODES and evaluate_frames_by is not None else None

    def go_on(self, before: Any) -> None:
        """Undo `pause`."""
        if before is not None and evaluate_frames_by is not None:
            evaluate_frames_by(before)

    def _away(self) -> list[RecordingMode]:
        found: list[RecordingMode] = getattr(self._local, "away", [])
        return found

    def _leave(self) -> None:
        modes = recording_modes()
        for mode in modes:
            take_off(mode)
        if modes:
            self._local.away = modes

    def _return(self) -> None:
        modes, self._local.away = self._away(), []
        for mode in modes:
            if not mode.closed:
                put_on(mode)


# Wraps compiled graphs, forward and backward.

_GRAPH = "__compiled_fn"
# Dynamo's name for the part of a function after a graph break.
_RESUMED = re.compile(r"(?:torch_dynamo_)?resume_in_(.+)_at_\d+$")


class CompiledCall:
    """One call of a compiled graph. Call it once.

    The last `own` positional arguments are tensors that the graph already holds. They are recorded as inputs but not passed on.
    """

    __slots__ = ("_graph", "_own", "written")

    def __init__(self, graph: Callable[..., Any], own: int = 0) -> None:
        self._graph = graph
        self._own = own
        self.written: tuple[torch.Tensor, ...] = ()
        """After the call: the positional arguments that it wrote into (running statistics of a batch norm, parameters in a compiled
        optimizer), in order. They are outputs, like the returned values."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        versions = [version_of(value) for value in args]
        result = self._graph(*args[: len(args) - self._own], **kwargs)
        self.written = tuple(
            value
            for value, version in zip(args, versions, strict=True)
            if version >= 0 and version_of(value) != version
        )
        return result


class CompiledRegions:
    """From `attach` to `detach`, routes every call of a compiled graph in a recording thread through `run_as_one(name, call, args, kwargs)`.
    `run_as_one` runs with recording suspended in that thread, records one operator and returns the result of the call.

    With `eager`, functions passed to `torch.compile` run eagerly instead, so that their operators are recorded; this applies to the
    whole process until `detach`. In both cases, tracing and export are not recorded (`SuspendedTracing`).

    In a thread that does not record, a call of a compiled graph costs one additional Python call.
    """

    def __init__(
        self,
        run_as_one: Callable[[str, CompiledCall, tuple[Any, ...], Mapping[str, Any]], Any],
        *,
        eager: bool = False,
        loading: Loading | None = None,
    ) -> None:
        self._run_as_one = run_as_one
        self._eager = eager
        self._replacements = Replacements()
        self._loading = Loading() if loading is None else loading
        self._tracing = SuspendedTracing(self._loading)
        self._calls = CompiledCalls()
        self._graphs: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._labels: dict[str, str] = {}
        self._stance: Any = None
        self._attached = False

    def attach(self) -> None:
        """Start. Must not be called inside a compiled function. A second `attach` does nothing."""
        if self._attached:
            return
        self._attached = True
        self._tracing.attach()
        self._loading.when_there("torch._dynamo", self._attach_compiler)
        if not self._eager:
            self._loading.when_there("torch._functorch._aot_autograd.runtime_wrappers", self._attach_backward)

    def _attach_compiler(self) -> None:
        never_compile_package(__name__.partition(".")[0])
        self._attach_export()
        if self._eager:
            self._stance = torch.compiler.set_stance("force_eager")
        else:
            self._calls.attach()
            self._attach_forward()

    def detach(self) -> None:
        """Undo `attach`. A second `detach` does nothing."""
        self._loading.forget()
        if self._stance is not None:
            # If the program has set another stance since, keep that.
            if stance() in (None, self._stance.stance):
                self._stance.__exit__(None, None, None)
            self._stance = None
        self._replacements.restore()
        self._calls.detach()
        self._tracing.detach()
        while self._graphs:
            scope, name, graph, wrapper = self._graphs.pop()
            if scope.get(name) is wrapper:
                scope[name] = graph
        self._labels.clear()
        self._attached = False

    def _attach_export(self) -> None:
        for exporter in EXPORTERS:
            found = exporter.owner()
            if found is not None:
                owner, name = found
                self._replacements.replace(owner, name, self._suspended_export(getattr(owner, name)))

    def _suspended_export(self, original: Callable[..., Any]) -> Callable[..., Any]:
        traces = self._traced(original)

        @functools.wraps(original)
        def export(*args: Any, **kwargs: Any) -> Any:
            # Called with only a function, an exporter returns a function that exports; called with its arguments too, a tuple.
            result = traces(*args, **kwargs)
            return result if isinstance(result, tuple) else self._traced(result)

        return export

    def _traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, not recorded, and with the program's stance: old releases (seen with 2.6) export nothing under `force_eager`."""
        traces = run_suspended(function)
        if not self._eager:
            return traces

        @functools.wraps(function)
        def tracer(*args: Any, **kwargs: Any) -> Any:
            ours = self._stance
            if ours is None or stance() != ours.stance:
                return traces(*args, **kwargs)
            ours.__exit__(None, None, None)
            try:
                return traces(*args, **kwargs)
            finally:
                ours.__enter__()

        return tracer

    def _attach_forward(self) -> None:
        hooks_of_names = cleanup_hook()
        if hooks_of_names is None or cleanup_manager() is None:
            return
        original = hooks_of_names.create

        def create(scope: dict[str, Any], name: str, value: Any) -> Any:
            hook = original(scope, name, value)
            if name.startswith(_GRAPH):
                self._wrap_graph(scope, name)
            return hook

        self._replacements.replace(hooks_of_names, "create", staticmethod(create))
        for _, hooks in _compiled_codes():
            for hook in hooks:
                if hook.name.startswith(_GRAPH) and hook.name in hook.scope:
                    self._wrap_graph(hook.scope, hook.name)

    def _wrap_graph(self, scope: dict[str, Any], name: str) -> None:
        graph = scope[name]
        depth = dispatch_depth

        def compiled_graph(*args: Any, **kwargs: Any) -> Any:
            # The cheapest test first: steps that are not dumped rarely have any mode.
            if not (self._attached and ((depth() and recording_here()) or self._calls.records())):
                return graph(*args, **kwargs)
            evaluated_by = self._calls.pause()
            try:
                with suspended():
                    own = _own_tensors(graph)
                    return self._run_as_one(self._label(name), CompiledCall(graph, len(own)), (*args, *own), kwargs)
            finally:
                self._calls.go_on(evaluated_by)

        # Dynamo would compile the wrapper, because it inspects frames called by the code that it made.
        never_compile(compiled_graph.__code__)
        scope[name] = compiled_graph
        self._graphs.append((scope, name, graph, compiled_graph))

    def _attach_backward(self) -> None:
        compiler = backward_compiler()
        if compiler is None:
            self._attach_calls_at_run_time()
            return
        original = compiler.get_or_compile

        def get_or_compile(compiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not recording_here():
                return original(compiler, *args, **kwargs)
            with suspended():
                graph = original(compiler, *args, **kwargs)
            return self._backward(graph, getattr(compiler.fw_metadata, "compile_id_str", None))

        self._replacements.replace(compiler, "get_or_compile", get_or_compile)

    def _attach_calls_at_run_time(self) -> None:
        """For older releases: wraps the function that calls compiled code. During a backward, it calls only backward graphs."""
        wrappers = run_time_wrappers()
        original = getattr(wrappers, CALL_AT_RUN_TIME, None)
        if original is None:
            return

        def call(graph: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            # Modules that imported this wrapper by name keep it after `detach`, hence `_attached`.
            if self._attached and graph_task() != -1 and recording_here():
                graph = self._backward(graph, None)
            return original(graph, *args, **kwargs)

        self._replacements.replace(wrappers, CALL_AT_RUN_TIME, call)

    def _backward(self, graph: Callable[..., Any], compile_id: str | None) -> Callable[..., Any]:
        # A boxed callable takes its arguments as one list and empties it, so that tensors can be freed while it runs.
        boxed = bool(getattr(graph, BOXED, False))

        def compiled_backward(*args: Any) -> Any:
            values = tuple(args[0]) if boxed else args
            if boxed:
                args[0].clear()
            call = CompiledCall((lambda *given: graph(list(given))) if boxed else graph)
            with suspended():
                return self._run_as_one(f"{self._forward_label(compile_id)}_backward", call, values, {})

        if boxed:
            setattr(compiled_backward, BOXED, True)
        return compiled_backward

    def _label(self, graph_name: str) -> str:
        """`compiled_{function}`, named after the function whose rewritten code calls the graph with that global name."""
        label = self._labels.get(graph_name)
        if label is None:
            for code, hooks in _compiled_codes():
                if any(hook.name == graph_name for hook in hooks):
                    label = self._labels[graph_name] = label_of(code)
                    break
        return label or "compiled"

    def _forward_label(self, compile_id: str | None) -> str:
        """The label of the forward graph of the compilation `compile_id`."""
        if compile_id is None:
            return "compiled"
        label = self._labels.get(compile_id)
        if label is None:
            self._labels.update((str(entry.compile_id), label_of(code)) for entry, code in _cache_entries())
            label = self._labels.setdefault(compile_id, "compiled")
        return label


def label_of(code: CodeType) -> str:
    """`compiled_` and the name of the user's function, also for parts after a graph break.

    >>> label_of((lambda: 0).__code__.replace(co_name="torch_dynamo_resume_in_forward_at_12"))
    'compiled_forward'

    Only `compiled` if the function is PyTorch's own (`torch.compile(torch.nn.Sequential(...))`).
    """
    library = library_wrappers()
    if library is not None and code.co_filename == library.__file__:
        return "compiled"
    resumed = _RESUMED.match(code.co_name)
    return "compiled_" + re.sub(r"\W", "", resumed[1] if resumed else code.co_name)


def _compiled_codes() -> Iterator[tuple[CodeType, Iterable[Any]]]:
    """Each code object that dynamo made, with the hooks that list its globals."""
    manager = cleanup_manager().instance
    for key, hooks in list(manager.values.items()):
        code = manager.refs[key]()
        if code is not None:
            yield code, hooks


def _cache_entries() -> Iterator[tuple[Any, CodeType]]:
    """Each cache entry of dynamo with the code object that it was compiled from. An entry's own code is None once its guards are gone."""
    codes, entries = compiled_inputs(), cache_entries()
    for reference in [] if codes is None or entries is None else list(codes.seen):
        code = reference()
        if code is not None:
            for entry in entries(code):
                yield entry, code


def _own_tensors(graph: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
    """The tensors that a graph reads and writes without taking them as arguments: parameters and states of a compiled optimizer."""
    # The backend "eager" returns a method of the graph's module; AOTAutograd copies these two methods of it to its function.
    holder = getattr(original_of(graph), "__self__", graph)
    return tuple(
        tensor
        for method in ("named_parameters", "named_buffers")
        for _, tensor in getattr(holder, method, tuple)()
        if isinstance(tensor, torch.Tensor)
    )
