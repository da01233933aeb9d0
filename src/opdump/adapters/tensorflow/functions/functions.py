"""Captures every call of a traced function (tf.function) from the eager program, including those of Keras and of gradients.

While a capture is open, the single entry point through which the runtime runs a function is intercepted (`Context.call_function` in 2.15 and
2.21). In a dumped step it runs the instrumented copy of the function (`instrumented.py`), in any other step the function itself.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import function_def_to_graph, ops

from opdump.adapters.graph_runtime import GraphRun, NamedOperator
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.functions.eager import is_own
from opdump.adapters.tensorflow.functions.instrumented import (
    DumpedCall,
    InstrumentedFunction,
    has_data,
    live_tensors,
    without_suffix,
)
from opdump.adapters.tensorflow.functions.optimised import rewriting_off
from opdump.adapters.tensorflow.functions.steps import ProgramSteps, StepPart, TracedUpdates
from opdump.adapters.tensorflow.graphs import library
from opdump.adapters.tensorflow.graphs.library import Definition, Library, reached, shown_name
from opdump.adapters.tensorflow.graphs.operator_kinds import draws_seeded_numbers, folds_callbacks, may_fold_callbacks
from opdump.adapters.tensorflow.graphs.program import function_program
from opdump.adapters.tensorflow.stacks import function_names
from opdump.interpreter.critical_sections import no_garbage_collection


def emit_compiled(
    capture: Capture, model: Model, run: GraphRun, definition: Definition, inputs: Sequence[Any], outputs: Sequence[Any]
) -> None:
    """Pass a finished call to the recorder."""
    eager_context.async_wait()
    signature = definition.signature
    op_name = shown_name(signature.name)
    selection = capture.selection(capture.filter_of(model), [op_name])
    skip = selection.skip_of(library.LAUNCH, op_name)
    capture.recorder.matched_kernels |= selection.matched_kernels
    has_any = (selection.wants_inputs and has_data(inputs)) or (selection.wants_outputs and has_data(outputs))
    if not skip and not has_any:
        skip = "not observed"  # its effects are on variables
    operator = NamedOperator(library.LAUNCH, op_name, arguments={"function": shown_name(signature.name)}, skip=skip)
    with capture.lock:
        if skip:
            run.skip(operator)
            return
        with run.recorder.losing(operator):
            run.emit(
                operator,
                live_tensors(selection, operator, "input", inputs, signature.input_arg),
                live_tensors(selection, operator, "output", outputs, signature.output_arg),
            )


CallFunction = Callable[[Any, bytes, list[Any], int], Any]

_UID: Final = re.compile(rb"_(\d+)$")
_GRADIENT: Final = re.compile(rb"^__(forward|inference___backward)_")
_FOLDED_BEFORE: Final = (
    "{} is not shown: TensorFlow runs a Python function of it once, before its steps, because it is declared as stateless and depends on "
    "no input (stateful=False), and it was traced before the capture began; begin the capture before its first call"
)
_SEEDED_BEFORE: Final = (
    "{} is not shown: it draws random numbers from the state of its own operators, and it was traced before the capture began; "
    "begin the capture before its first call, or draw from tf.random.Generator or tf.random.stateless_*"
)


@dataclass(slots=True)
class _Traced:
    """A traced function that was called."""

    model: Model
    within_eager: bool
    """Its gradient is computed outside, so it is part of a step of the eager program."""
    part: StepPart
    is_empty: bool
    """None of it is selected, or it cannot be observed."""
    alone: bool
    """Only one of function and copy may ever run: each would have its own state of random numbers, or Python that runs once when the runtime
    folds constants.
    """
    compiled: str
    """The note if XLA compiles it, or operators of it that the program marked: it is then one operator. Otherwise empty."""
    copy: InstrumentedFunction | None = None


class FunctionCapture:
    """Captures the calls of traced functions, in all threads, from `open` to `close`. `called` is called with each call in a
    dumped step: its inputs, the functions that it runs elsewhere, the step.
    """

    def __init__(
        self,
        capture: Capture,
        steps: ProgramSteps,
        called: Callable[[Iterable[Any], Iterable[str], int], object] = lambda *_: None,
        program_names: Callable[[], tuple[str, ...]] = lambda: (),
    ) -> None:
        self._called = called
        self._program_names = program_names
        self._capture = capture
        self._steps = steps
        self._traced: dict[bytes, _Traced] = {}
        self._models: dict[bytes, Model] = {}
        self._lock = threading.RLock()
        self._original: CallFunction | None = None
        self._abandoned = False
        self.updates = TracedUpdates()
        self._mark = 0
        """Functions with a smaller number were traced before."""

    def open(self) -> None:
        self._mark = ops.uid()
        original: CallFunction = eager_context.Context.call_function
        self._original = original

        def call_function(context: Any, name: bytes, tensor_inputs: list[Any], num_outputs: int) -> Any:
            return self._call(original, context, name, tensor_inputs, num_outputs)

        eager_context.Context.call_function = call_function

    def close(self) -> None:
        """Remove everything except the copies of functions of which only the copy may run."""
        self._take_out()
        if self._abandoned:
            return
        context = eager_context.context()
        for traced in self._traced.values():
            if traced.copy is not None and not traced.alone:
                for definition in traced.copy.definitions:
                    context.remove_function(definition)

    def abandon(self) -> None:
        """In a forked process: the copies stay in the runtime, which may have lost a thread that holds its locks."""
        self._abandoned = True

    def _take_out(self) -> None:
        if self._original is None:
            return  # the capture ended before the hook was installed
        kept = {name: traced.copy for name, traced in self._traced.items() if traced.alone and traced.copy is not None}
        eager_context.Context.call_function = _redirecting(self._original, kept) if kept else self._original

    def _call(self, original: CallFunction, context: Any, name: bytes, inputs: list[Any], num_outputs: int) -> Any:
        traced = self._traced.get(name)
        if traced is None:
            with self._lock:
                traced = self._traced.get(name) or self._first_call(context, name)
        steps = self._steps
        steps.call_begins(traced.part)
        step = steps.of(traced.model, within_eager=traced.within_eager)
        wanted = not traced.is_empty and steps.wants(step)
        if not wanted and not (traced.alone and not traced.is_empty):
            outputs = original(context, name, inputs, num_outputs)
        elif wanted and not traced.alone and (traced.compiled or library.clusters_functions()):
            self._called(inputs, (), step)
            outputs = original(context, name, inputs, num_outputs)
            self._capture.note(traced.compiled or library.OF_CLUSTERS.format(shown_name(name.decode())))
            definition = context.get_function_def(name.decode())
            emit_compiled(self._capture, traced.model, self._run(traced.model, step), definition, inputs, outputs or ())
        else:
            with self._lock:
                if traced.copy is None:
                    with no_garbage_collection():
                        traced.copy = InstrumentedFunction(name.decode(), context, inputs, self._capture, traced.model)
            copy = traced.copy
            if wanted:
                self._called(inputs, copy.hidden, step)
                outputs = self._dumped(original, context, traced.model, copy, step, inputs, num_outputs)
            else:
                outputs = _renamed(original, context, copy, inputs, num_outputs)
        steps.called(traced.model, step, traced.part, inputs, within_eager=traced.within_eager)
        return outputs

    def _first_call(self, context: Any, name: bytes) -> _Traced:
        """A function that is called for the first time."""
        definition = context.get_function_def(name.decode())
        of_gradient = _GRADIENT.match(name) is not None
        # A function and the function of its gradient are one model.
        forward = definition.attr["forward_function_name"].s if "forward_function_name" in definition.attr else b""
        known = self._models.get(forward or name)
        names = (*self._program_names(), *function_names(name.decode(), definition))
        model = known or self._capture.new_model(*dict.fromkeys(names))
        self._models[forward or name] = model
        if known is None:
            self._write_graph(model, definition)
        function = name.decode()
        definitions = list(reached(function, context.get_function_def))
        compiled = _reason_compiled(function, definitions)
        part = self.updates.part_of(definitions, context.get_function_def)
        alone = "" if compiled else self._reason_alone(function, context.get_function_def)
        is_empty = self._capture.filter_of(model).is_empty
        number = _UID.search(name)
        if alone and not is_empty and number is not None and int(number[1]) < self._mark:
            self._capture.note(alone.format(function))
            is_empty = True
        traced = _Traced(model, of_gradient, part, is_empty, bool(alone), compiled)
        self._traced[name] = traced
        return traced

    def _reason_alone(self, function: str, library: Library) -> str:
        """If only a copy of a function may run, because a run of it changes the next one: the note for one that ran before."""
        copied = reached(function, library, into_compiled=False)
        nodes = [node for definition in copied for node in definition.node_def]
        if draws_seeded_numbers(nodes):
            return _SEEDED_BEFORE
        if may_fold_callbacks(nodes) and folds_callbacks(function_program(function, library, self._capture.stacks)):
            return _FOLDED_BEFORE
        return ""

    def _write_graph(self, model: Model, definition: Definition) -> None:
        write = self._capture.write_graph
        if write is None or self._capture.is_over:
            return
        try:
            graph = function_def_to_graph.function_def_to_graph(definition)
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            self._capture.note(f"the graph of {definition.signature.name} is not written: {error}")
            return
        write(model, graph, is_computational=True)

    def _dumped(
        self,
        original: CallFunction,
        context: Any,
        model: Model,
        copy: InstrumentedFunction,
        step: int,
        inputs: list[Any],
        num_outputs: int,
    ) -> Any:
        current = copy.current
        with current.lock:
            call = DumpedCall(self._capture, self._run(model, step), inputs, tuple(map(self._source_of, inputs)))
            current.call = call
            try:
                outputs = _renamed(original, context, copy, inputs, num_outputs)
                eager_context.async_wait()
            finally:
                current.call = None
        copy.emitted(call, outputs or ())
        self._skip_operators(call, copy)
        if call.error is not None:
            raise call.error
        return outputs

    def _source_of(self, tensor: Any) -> str:
        """The source of an argument of a call."""
        if tensor.dtype == tf.resource:
            return self._capture.variables.source(tensor._id)
        return self._capture.eager.makers.get(tensor._id, "")

    def _run(self, model: Model, step: int) -> GraphRun:
        return self._capture.run(
            model,
            step,
            order=self._steps.order(step),
            executions=self._steps.executions(model, step),
            called_at=self._capture.stacks.of_call(),
        )

    def _skip_operators(self, call: DumpedCall, copy: InstrumentedFunction) -> None:
        """List or count the skipped operators, and those of bodies that did not run."""
        run = call.run
        with self._capture.lock:
            for number, body in enumerate(copy.bodies):
                times = call.bodies[body.counted] if body.counted else 1
                reasons = body.reasons if times else body.not_executed
                if (number, times > 0) not in copy.listed:
                    copy.listed.add((number, times > 0))
                    for operator in body.skipped:
                        run.skip(operator, operator.skip if times else "not executed")
                    for operator in () if times else body.emitted:
                        run.skip(operator, "not executed")
                    times = max(times - 1, 0)
                    if not times:
                        continue
                for _ in range(max(times, 1)):
                    run.count_skipped(reasons)


def _reason_compiled(function: str, definitions: Sequence[Definition]) -> str:
    """The note for a function that XLA compiles, as a whole or in part; empty for others. `definitions` has it and those that it calls."""
    if library.is_compiled(definitions[0]):
        return library.OF_FUNCTION.format(shown_name(function))
    nodes = (node for each in definitions for node in each.node_def)
    if library.clusters_functions() or library.has_marked_clusters(nodes):
        return library.OF_CLUSTERS.format(shown_name(function))
    return ""


def _renamed(
    original: CallFunction, context: Any, copy: InstrumentedFunction, inputs: list[Any], num_outputs: int
) -> Any:
    """Run a copy. Errors and callbacks of the program get the name of the function instead of that of the copy."""
    callbacks = context.op_callbacks
    registered = list(callbacks)
    callbacks[:] = [each if is_own(each) else _with_function_names(each) for each in registered]
    try:
        if not copy.is_copy:
            return original(context, copy.name.encode(), inputs, num_outputs)
        with rewriting_off(context):
            return original(context, copy.name.encode(), [*inputs, tf.constant(0)], num_outputs)
    except tf.errors.OpError as error:
        error._message = copy.as_the_programs(error.message)
        error.args = tuple(copy.as_the_programs(each) if isinstance(each, str) else each for each in error.args)
        raise
    finally:
        callbacks[:] = registered


def _with_function_names(callback: Callable[..., Any]) -> Callable[..., Any]:
    def call(op_type: Any, *args: Any, **kwargs: Any) -> Any:
        return callback(without_suffix(op_type) if isinstance(op_type, str) else op_type, *args, **kwargs)

    return call


def _redirecting(original: CallFunction, kept: dict[bytes, InstrumentedFunction]) -> CallFunction:
    """Runs copies instead of some functions. The caller must keep the probes of a copy alive while it runs."""

    def call_function(context: Any, name: bytes, tensor_inputs: list[Any], num_outputs: int) -> Any:
        copy = kept.get(name)
        if copy is None:
            return original(context, name, tensor_inputs, num_outputs)
        return _renamed(original, context, copy, tensor_inputs, num_outputs)

    return call_function
