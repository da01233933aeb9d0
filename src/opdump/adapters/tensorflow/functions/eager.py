"""Captures operators that the program runs one by one: the runtime passes each to a callback after it has run.

They have no names, so an operator is called `{scope}{type}_{n}`, where n counts within the step. Callbacks belong to a thread, so each thread
of the program registers its own, and so do functions that the runtime calls in its own threads (`tf.py_function`, generators);
operators of these have the name of the thread, or of the function, as a prefix.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops import dataset_ops, iterator_ops, multi_device_iterator_ops
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute, record
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import script_ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from opdump.adapters.graph_runtime import NamedOperator, live_tensor
from opdump.adapters.host import HostTensor, host_tensor
from opdump.adapters.program_stacks import Stack
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.capture import Capture, EagerTensors, Model, objects_of
from opdump.adapters.tensorflow.functions.instrumented import Probe, has_data, live_tensors
from opdump.adapters.tensorflow.functions.steps import ProgramSteps
from opdump.adapters.tensorflow.graphs.library import arguments_of_call, device_of, graph_name, reachable
from opdump.adapters.tensorflow.graphs.operator_kinds import READS, ModelSlots, is_assignment, writes_variable
from opdump.adapters.tensorflow.graphs.program import hidden_operators
from opdump.adapters.tensorflow.stacks import EAGER
from opdump.adapters.threads import ThreadEntry
from opdump.recorder import LiveTensor
from opdump.records import Phase, SkipReason

_MOST_ARGUMENTS: Final = 10_000
_READ: Final = "ReadVariableOp"
_NO_CALL: Final = ("", ())


class EagerCapture:
    """Captures single operators in dumped steps: of the thread that opens it, of threads that start later, and of callbacks of the runtime."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._model, model_filter = capture.eager_model(EAGER)
        self._selection = capture.selection(model_filter)
        self._steps: ProgramSteps | None = None
        self._datasets: DatasetFunctions | None = None
        self._on = False
        self._thread = 0
        self._has_threads = False
        """Whether other threads may end a step: no thread can register a callback in another one."""
        self._here = threading.local()
        self._entry = ThreadEntry(self._in_thread, beginning=self._thread_begins)
        self._replacements = Replacements()
        self._names: Counter[str] = Counter()
        self._arguments: dict[str, dict[str, Any]] = {}
        """The same object for operators with the same properties, by which the recorder recognises repeated steps."""
        self._scope_of_update = ""
        """The name scope of the latest operator, if that belongs to an update of parameters."""
        self._values: dict[int, Any] = {}
        """Identity of the handle of a variable -> its latest value, if no operator can have changed it unseen."""
        self._begun: dict[int, tuple[Counter[str], EagerTensors]] = {}
        """The same by step, because the previous one may continue."""

    def open(self, steps: ProgramSteps) -> None:
        self._steps = steps
        self._thread = threading.get_ident()
        self._capture.variables.open()
        if not self._selection.is_empty:
            self._entry.attach()
            self._watch_callbacks()
            self._watch_calls()
            self._datasets = DatasetFunctions(self._capture, self._model, self._selection, steps)
            self._datasets.open()
        self.step_changed()

    def close(self) -> None:
        self._entry.detach()
        self._capture.variables.close()
        self._replacements.restore()
        self._switch(False)
        if not eager_context.context().op_callbacks:
            execute.execute = execute.quick_execute
        if self._datasets is not None:
            self._datasets.close()
        with self._capture.lock:
            self._steps = None
        self._capture.recorder.matched_kernels |= self._selection.matched_kernels

    def abandon(self) -> None:
        """In a forked process: list nothing."""
        if self._datasets is not None:
            self._datasets.abandon()

    def function_called(self, inputs: Iterable[Any], hidden: Iterable[str], step: int) -> None:
        """A traced function is called in a dumped step: see `DatasetFunctions`. It may write variables."""
        inputs = list(inputs)
        for each in inputs:
            self._values.pop(each._id, None)
        if self._datasets is not None:
            self._datasets.used(inputs, hidden, step, is_told=False)  # the instrumented function has its own note

    def step_changed(self) -> None:
        """The program entered another step."""
        with self._capture.lock:
            step = -1 if self._steps is None else self._steps.step
            self._begun = {number: begun for number, begun in self._begun.items() if number >= step - 1}
            self._names, self._capture.eager = self._begun.setdefault(step, (Counter(), EagerTensors()))
        if self._thread == threading.get_ident():
            self._switch((self._has_threads and not self._capture.is_over) or self._wants_step())
        if self._datasets is not None:
            self._datasets.emit()

    def _wants_step(self) -> bool:
        return self._steps is not None and self._steps.wants(self._steps.step) and not self._selection.is_empty

    def _thread_begins(self) -> Stack:
        self._has_threads = True
        if self._thread == threading.get_ident() and not self._selection.is_empty and not self._capture.is_over:
            self._switch(True)
        return self._capture.stacks.of_call()

    def _switch(self, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        self._values.clear()
        (_register if on else _unregister)(self._ran)

    @contextmanager
    def _in_thread(self) -> Iterator[None]:
        """Another thread of the program is running."""
        with (
            self._capture.stacks.within(self._entry.begun),
            self._named_within(f"{_thread_name()}/"),
        ):
            yield

    @contextmanager
    def _named_within(self, place: str) -> Iterator[None]:
        before, self._here.place = getattr(self._here, "place", ""), place
        # A thread of a replica gets the list of the thread that started it instead of its own.
        registered = _register(self._ran)
        try:
            yield
        finally:
            if self._ran in registered:
                registered.remove(self._ran)
            self._here.place = before

    def _watch_callbacks(self) -> None:
        original = script_ops.FuncRegistry.__call__

        def call(registry: Any, token: Any, device: Any, args: Any) -> Any:
            if self._steps is None or self._capture.is_over or self._ran in eager_context.context().op_callbacks:
                return original(registry, token, device, args)
            function = registry.get(token)
            if isinstance(function, Probe):
                return original(registry, token, device, args)
            with self._named_within(f"{_named(_name_of(function))}/"):
                return original(registry, token, device, args)

        self._replacements.replace(script_ops.FuncRegistry, "__call__", call)

    def _watch_calls(self) -> None:
        """Remember what the program gives to the operator that runs, for `_reads`."""
        original = pywrap_tfe.TFE_Py_FastPathExecute
        here = self._here

        def execute_operator(context: Any, op_type: str, name: Any, *arguments: Any) -> Any:
            before, here.call = getattr(here, "call", _NO_CALL), (op_type, arguments)
            try:
                return original(context, op_type, name, *arguments)
            finally:
                here.call = before

        self._replacements.replace(pywrap_tfe, "TFE_Py_FastPathExecute", execute_operator)

    def _reads(self, op_type: str, op_def: Any, inputs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """The handle of each variable that the program gave to an operator as a tensor, and the value that the runtime read from it.

        The runtime reads such a variable with a ReadVariableOp, which it passes to no callback.
        """
        called, arguments = getattr(self._here, "call", _NO_CALL)
        if called != op_type:
            return
        given: list[Any] = []
        for argument, each in zip(op_def.input_arg, arguments, strict=False):
            given += each if argument.number_attr or argument.type_list_attr else [each]
        for each, tensor in zip(given, inputs, strict=False):
            if isinstance(each, BaseResourceVariable) and tensor.dtype != tf.resource:
                yield each.handle, tensor

    def _ran(
        self,
        op_type: str | bytes,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any] | None,
        op_name: str | None = None,
        graph: Any = None,
    ) -> Sequence[Any] | None:
        """The runtime calls this after an operator, also when an operator is traced and when a function was run.

        Returns the outputs unchanged if the program has callbacks of its own, because their results pass through here. Otherwise returns
        nothing, because a result replaces the outputs of the operator, and the outputs as they are need not be a list.
        """
        if graph is None and self._wants_step():
            name = op_type.decode() if isinstance(op_type, bytes) else op_type
            op_def = op_def_registry.get(name)
            if op_def is not None:  # otherwise a traced function
                if eager_context.context().is_async():
                    # Never wait for a tensor while holding the lock: a callback that computes the tensor may need the lock.
                    eager_context.async_wait()
                with self._capture.lock:
                    if self._steps is not None:
                        with self._capture.recorder.losing(name):
                            for handle, value in self._reads(name, op_def, inputs):
                                dtype = ("dtype", value.dtype.as_datatype_enum)
                                self._emit(_READ, op_def_registry.get(_READ), [handle], dtype, [value], self._steps)
                            self._emit(name, op_def, inputs, attrs, outputs or (), self._steps)
        return outputs if len(eager_context.context().op_callbacks) > 1 else None

    def _emit(
        self,
        op_type: str,
        op_def: Any,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        steps: ProgramSteps,
    ) -> None:
        capture = self._capture
        if self._datasets is not None and not any(tensor.dtype == tf.variant for tensor in outputs):
            functions = [tf.compat.as_str(each.name) for each in attrs[1::2] if isinstance(each, ConcreteFunction)]
            self._datasets.used(inputs, functions)
        scoped = f"{getattr(self._here, 'place', '')}{eager_context.context().scope_name}{op_type}"
        op_name = f"{scoped}_{self._names[scoped]}"
        self._names[scoped] += 1
        shown = capture.shown(self._model, op_name)
        skip = self._skip_of(op_type, op_name, shown, inputs, outputs)
        task_id = self._names.total() - 1
        arguments = arguments_of_call(attrs, op_def) | device_of(next((each.backing_device for each in outputs), ""))
        if len(self._arguments) > _MOST_ARGUMENTS:
            self._arguments.clear()
        arguments = self._arguments.setdefault(repr(arguments), arguments)
        eager = capture.eager
        phase = self._phase(op_type, inputs, outputs, steps)
        kernel = f"tf::{op_type}"
        operator = NamedOperator(op_type, shown, task_id, arguments, capture.stacks.of_call(), kernel, skip, phase)
        run = capture.run(self._model, steps.step, order=steps.order(steps.step))
        for slot, tensor in enumerate(outputs):
            eager.makers[tensor._id] = f"{shown}:{slot}"
        read, written = self._variables(operator, op_def, inputs, outputs)
        if skip:
            run.skip(operator)
            return
        given = live_tensors(
            self._selection, operator, "input", inputs, op_def.input_arg, lambda each: eager.makers.get(each._id, "")
        )
        made = live_tensors(self._selection, operator, "output", outputs, op_def.output_arg)
        run.emit(operator, sorted([*read, *given], key=itemgetter(0)), [*made, *written])

    def _phase(self, op_type: str, inputs: Sequence[Any], outputs: Sequence[Any], steps: ProgramSteps) -> Phase:
        """The phase of an operator; what follows from gradients is noted."""
        follow = self._capture.eager.follow_backward
        follows = any(
            # A tape records the forward pass of a further gradient, whatever wrote the variables that it reads.
            each._id in follow and (each.dtype != tf.resource or not record.could_possibly_record())
            for each in inputs
        )
        # TensorFlow 2.15 reads a variable that is given as a tensor without an operator. Within an update, its scope tells that.
        scope, makers = eager_context.context().scope_name, self._capture.eager.makers
        follows |= scope == self._scope_of_update != "" and any(each._id not in makers for each in inputs)
        phase: Phase = "backward" if steps.is_in_gradient else "optimizer" if follows else "forward"
        self._scope_of_update = scope if phase == "optimizer" else ""
        if phase != "forward":
            follow.update(each._id for each in outputs)
            if writes_variable(op_type):
                follow.update(each._id for each in inputs if each.dtype == tf.resource)
        return phase

    def _variables(
        self, operator: NamedOperator, op_def: Any, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[list[LiveTensor], list[LiveTensor]]:
        """The values of the variables that an operator reads, in the slots of their handles, and of those that it wrote."""
        given: list[LiveTensor] = []
        made: list[LiveTensor] = []
        writes = writes_variable(operator.op_type)
        if not (writes or operator.op_type in READS) or not self._capture.records_variables:
            return given, made
        names = dict(enumerate(each.name for each in op_def.input_arg))
        if operator.op_type == _READ:
            self._values[inputs[0]._id] = outputs[0]
        for slot, handle in enumerate(inputs):
            if handle.dtype != tf.resource:
                continue
            before = self._values.get(handle._id) if writes else _value_of(handle, self._values)
            if before is not None and not is_assignment(operator.op_type):
                source = self._capture.variables.source(handle._id)
                given.append(self._live_variable(slot, names.get(slot, ""), handle, before, source))
            after = _value_of(handle, {}) if writes else None
            if after is not None:
                self._values[handle._id] = after
                made.append(self._live_variable(len(made), names.get(slot, ""), handle, after))
        wants_inputs, wants_outputs = self._selection.wants("input"), self._selection.wants("output")
        return given if wants_inputs else [], made if wants_outputs else []

    def _live_variable(self, slot: int, argument: str, handle: Any, value: Any, source: str = "") -> LiveTensor:
        """The value of a variable for the recorder."""
        tensor = host_tensor(value._numpy())
        if isinstance(tensor, HostTensor):
            tensor.memory = self._capture.variables.memory(handle._id, tensor.shape)
        return live_tensor(slot, argument, tensor, source)

    def _skip_of(
        self, op_type: str, op_name: str, shown: str, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> SkipReason:
        reason = self._selection.skip_of(op_type, op_name, shown=shown)
        if reason or not outputs or has_data(outputs) or (self._selection.wants_inputs and has_data(inputs)):
            return reason
        return "handle"


def _value_of(handle: Any, known: dict[int, Any]) -> Any:
    """The value of a variable, read without the callbacks of the program; None if it has none, or its element type is unknown."""
    if handle._id in known:
        return known[handle._id]
    facts = getattr(handle, "_handle_data", None)
    if facts is None or not facts.is_set or len(facts.shape_and_type) != 1:
        return None
    attributes = ("dtype", facts.shape_and_type[0].dtype)
    context = eager_context.context()
    with context.device(handle.device):
        return execute.quick_execute("ReadVariableOp", 1, [handle], attributes, context)[0]


def _register(callback: Callable[..., Any]) -> list[Any]:
    """Register the runtime's callback in this thread, in addition to those of the program. Returns the callbacks of this thread."""
    with tf.init_scope():
        context = eager_context.context()
        context.add_op_callback(callback)
    execute.execute = execute.execute_with_callbacks
    callbacks: list[Any] = context.op_callbacks
    return callbacks


def _unregister(callback: Callable[..., Any]) -> None:
    """Remove a callback. The execution function stays: another thread may have callbacks, and without callbacks it equals the plain one."""
    context = eager_context.context()
    if callback in context.op_callbacks:
        context.remove_op_callback(callback)


def is_own(callback: Any) -> bool:
    """Whether a callback of the runtime belongs to a capture."""
    return isinstance(getattr(callback, "__self__", None), EagerCapture)


def _thread_name() -> str:
    """The scope of the operators of this thread. For a replica it is its number, which other threads do not share."""
    thread = threading.current_thread()
    replica = getattr(thread, "replica_id", None)
    return _named(thread.name) if replica is None else f"replica_{replica}"


def _named(text: str) -> str:
    """As part of a name in TensorFlow."""
    return re.sub(r"[^A-Za-z0-9_.\\-]+", "_", text).strip("_") or "thread"


def _name_of(function: Any) -> str:
    """The program's name for a function that the runtime calls."""
    while True:
        inner = getattr(function, "_func", None) or getattr(function, "func", None)
        if inner is None:
            return str(getattr(function, "__name__", type(function).__name__))
        function = inner


# Lists the operators of functions of data sets (`map`, `filter`, `flat_map`, `reduce`, ...), which run unobserved in threads of the runtime.
#
# A data set is examined when it is iterated, reduced or asked for its element while a capture is open. The operators of its functions are
# listed as `not observed`, and a note names the functions. Functions of TensorFlow's and Keras' own data handling are not operators of the program.

_UNSEEN: Final = (
    "the operators of {} are not shown: a data set runs it in threads of the runtime; "
    "to see them, call the function on an element of the data set"
)


class DatasetFunctions:
    """Lists the operators of the functions that data sets run, from `open` to `close`, once a step is dumped."""

    def __init__(self, capture: Capture, model: Model, selection: ModelSlots, steps: ProgramSteps) -> None:
        self._capture = capture
        self._model = model
        self._selection = selection
        self._steps = steps
        self._alive: dict[int, Any] = {}
        """The tensors that represent data sets and iterators -> the data sets, as weak references."""
        self._functions: dict[str, bool] = {}
        """Functions that were found but not yet listed, by the runtime's name; whether a note names them."""
        self._listed: set[str] = set()
        self._names: Counter[str] = Counter()
        self._replacements = Replacements()

    def open(self) -> None:
        for found in objects_of(iterator_ops.OwnedIterator):
            self._remember(getattr(found, "_iterator_resource", None), getattr(found, "_dataset", None))
        for found in objects_of(dataset_ops.DatasetV2):
            self._remember(getattr(found, "_variant_tensor_attr", None), found)
        made = dataset_ops.DatasetV2.__init__
        create = iterator_ops.OwnedIterator._create_iterator
        of_devices = multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__

        def make(dataset: Any, variant_tensor: Any) -> None:
            made(dataset, variant_tensor)
            self._remember(variant_tensor, dataset)

        def create_iterator(iterator: Any, dataset: Any) -> None:
            create(iterator, dataset)
            self._remember(iterator._iterator_resource, dataset)

        def iterator_of_devices(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            of_devices(iterator, dataset, *args, **kwargs)
            if dataset is not None:
                self._collect(dataset)

        replace = self._replacements.replace
        replace(dataset_ops.DatasetV2, "__init__", make)
        replace(iterator_ops.OwnedIterator, "_create_iterator", create_iterator)
        replace(multi_device_iterator_ops.OwnedMultiDeviceIterator, "__init__", iterator_of_devices)

    def abandon(self) -> None:
        """In a forked process: list nothing."""
        self._functions.clear()

    def close(self) -> None:
        self._replacements.restore()
        self.emit()

    def emit(self, step: int | None = None) -> None:
        """List the functions found in this step, by default the step of the eager program, if it is dumped."""
        step = self._steps.step if step is None else step
        if not self._functions or not self._steps.wants(step):
            return
        with self._capture.lock:
            waiting, self._functions = self._functions, {}
            self._listed.update(waiting)
            for name, is_told in waiting.items():
                self._list(name, step, is_told=is_told)

    def used(
        self, tensors: Iterable[Any], functions: Iterable[str], step: int | None = None, *, is_told: bool = True
    ) -> None:
        """In a dumped step, an operation had these tensors as inputs, including data sets and iterators, and runs functions elsewhere.

        `is_told`: a note names these functions.
        """
        for tensor in tensors:
            found = self._alive.pop(getattr(tensor, "_id", 0), None)
            dataset = None if found is None else found()
            if dataset is not None:
                self._collect(dataset)
        self._find(functions, is_told=is_told)
        self.emit(step)

    def _remember(self, tensor: Any, dataset: Any) -> None:
        if dataset is not None and hasattr(tensor, "_id"):
            self._alive[tensor._id] = weakref.ref(dataset)

    def _find(self, names: Iterable[str], *, is_told: bool) -> None:
        for name in names:
            if name not in self._listed:
                self._functions[name] = is_told or self._functions.get(name, False)

    def _collect(self, dataset: Any) -> None:
        """A data set returns its elements, and so do those that it reads."""
        for each in reachable([dataset], lambda each: each._inputs()):
            wrappers = (wrapper for wrapper in each._functions() if not _is_plumbing(wrapper))
            self._find((tf.compat.as_str(wrapper.function.name) for wrapper in wrappers), is_told=True)

    def _list(self, name: str, step: int, *, is_told: bool) -> None:
        place = re.sub(r"[^A-Za-z0-9_.\\-]+", "_", graph_name(name)).strip("_")
        self._names[place] += 1
        path = place if self._names[place] == 1 else f"{place}_{self._names[place] - 1}"
        stacks, library = self._capture.stacks, eager_context.context().get_function_def
        run = self._capture.run(self._model, step, order=self._steps.order(step))
        unseen = 0
        for op, reason in hidden_operators([(f"{path}/", name, stacks.of_call())], library, stacks):
            skip = self._selection.skip_of(op.op_type, op.name) or reason
            unseen += skip == "not observed"
            run.skip(op.named(0, skip=skip))
        if unseen and is_told:
            self._capture.note(_UNSEEN.format(path))


def _is_plumbing(wrapper: Any) -> bool:
    """Whether a function is the framework's own: how Keras splits arrays into batches, how a generator becomes a data set."""
    module = getattr(getattr(wrapper, "_func", None), "__module__", None) or ""
    return module.partition(".")[0] in ("keras", "tf_keras", "tensorflow")
