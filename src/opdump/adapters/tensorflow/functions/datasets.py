"""Lists the operators of functions of data sets (`map`, `filter`, `flat_map`, `reduce`, ...), which run unobserved in threads of the runtime.

A data set that is iterated, reduced or asked for its element while a capture is open is looked at for them. Their operators are listed as
`not observed`, and a note says which functions they are. Functions of TensorFlow's and Keras' own data handling are no operators of the program.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops, multi_device_iterator_ops
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import op_def_registry

from opdump.adapters.graph_runtime import NamedOperator
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.effects import Library
from opdump.adapters.tensorflow.function_names import graph_name
from opdump.adapters.tensorflow.functions.steps import ProgramSteps
from opdump.adapters.tensorflow.graphs.dataset_operators import hidden_functions
from opdump.adapters.tensorflow.graphs.library import are_handles, outputs_of, reached
from opdump.adapters.tensorflow.operator_kinds import ModelSlots
from opdump.adapters.tensorflow.stacks import stack_of_node

_CARRIERS: Final = (tf.variant, tf.resource)


class DatasetFunctions:
    """Lists the operators of the functions that data sets run, from `open` to `close`, once there is a step that is dumped."""

    def __init__(self, capture: Capture, model: Model, selection: ModelSlots, steps: ProgramSteps) -> None:
        self._capture = capture
        self._model = model
        self._selection = selection
        self._steps = steps
        self._collected: set[int] = set()
        self._kept: list[Any] = []
        """Data sets that were looked at, so that their identities stay theirs."""
        self._alive: dict[int, Any] = {}
        """Tensors by which functions are given data sets and iterators -> the data sets, as weak references."""
        self._functions: dict[str, Any] = {}
        """Functions that were found, by the runtime's name, and not listed yet."""
        self._listed: set[str] = set()
        self._names: Counter[str] = Counter()
        self._replacements = Replacements()

    def open(self) -> None:
        for found in gc.get_objects():
            if issubclass(type(found), iterator_ops.OwnedIterator):
                self._remember(getattr(found, "_iterator_resource", None), getattr(found, "_dataset", None))
            elif issubclass(type(found), dataset_ops.DatasetV2):
                self._remember(getattr(found, "_variant_tensor_attr", None), found)
        made = dataset_ops.DatasetV2.__init__
        create = iterator_ops.OwnedIterator._create_iterator
        following = iterator_ops.OwnedIterator._next_internal
        of_devices = multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__

        def make(dataset: Any, variant_tensor: Any) -> None:
            made(dataset, variant_tensor)
            self._remember(variant_tensor, dataset)

        def create_iterator(iterator: Any, dataset: Any) -> None:
            create(iterator, dataset)
            self._remember(iterator._iterator_resource, dataset)
            self._collect(dataset)

        def next_internal(iterator: Any) -> Any:
            dataset = getattr(iterator, "_dataset", None)
            if dataset is not None and id(dataset) not in self._collected:
                self._collect(dataset)
            return following(iterator)

        def iterator_of_devices(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            of_devices(iterator, dataset, *args, **kwargs)
            if dataset is not None:
                self._collect(dataset)

        replace = self._replacements.replace
        replace(dataset_ops.DatasetV2, "__init__", make)
        replace(iterator_ops.OwnedIterator, "_create_iterator", create_iterator)
        replace(iterator_ops.OwnedIterator, "_next_internal", next_internal)
        replace(multi_device_iterator_ops.OwnedMultiDeviceIterator, "__init__", iterator_of_devices)
        for name in ("reduce", "get_single_element"):
            self._replace_method(name)

    def abandon(self) -> None:
        """In a forked process: nothing is listed."""
        self._functions.clear()

    def close(self) -> None:
        self._replacements.restore()
        self.emit()
        self._kept.clear()

    def emit(self, step: int | None = None) -> None:
        """Lists what was found in this step, by default in that of the eager program, where it is dumped."""
        step = self._steps.step if step is None else step
        if not self._functions or not self._steps.wants(step):
            return
        capture = self._capture
        with capture.lock:
            waiting, self._functions = self._functions, {}
            for name, function in waiting.items():
                self._listed.add(name)
                self._list(name, function, step)

    def function_called(self, inputs: Iterable[Any], hidden: Iterable[str], step: int) -> None:
        """A traced function is called in a step that is dumped: with these, data sets and iterators among them.

        `hidden` are functions that its operators have run elsewhere; there is a note of these.
        """
        self._functions.update((name, None) for name in hidden if name not in self._listed)
        for tensor in inputs:
            if tensor.dtype in _CARRIERS:
                found = self._alive.get(getattr(tensor, "_id", 0))
                dataset = None if found is None else found()
                if dataset is not None:
                    self._collect(dataset)
        self.emit(step)

    def _remember(self, tensor: Any, dataset: Any) -> None:
        if dataset is not None and hasattr(tensor, "_id"):
            self._alive[tensor._id] = weakref.ref(dataset)

    def _replace_method(self, name: str) -> None:
        original = getattr(dataset_ops.DatasetV2, name)

        def method(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            self._collect(dataset)
            return original(dataset, *args, **kwargs)

        self._replacements.replace(dataset_ops.DatasetV2, name, method)

    def collect_function(self, function: Any) -> None:
        """An operator ran that runs a function elsewhere."""
        name = tf.compat.as_str(function.name)
        if name not in self._listed:
            self._functions[name] = function
        self.emit()

    def _collect(self, dataset: Any) -> None:
        """A data set is going to give its elements."""
        for each in _with_inputs(dataset):
            if id(each) in self._collected:
                continue
            self._collected.add(id(each))
            self._kept.append(each)
            for wrapper in each._functions():
                name = tf.compat.as_str(wrapper.function.name)
                if name not in self._listed and not _is_plumbing(wrapper):
                    self._functions[name] = wrapper.function
        self.emit()

    def _list(self, name: str, function: Any, step: int) -> None:
        definitions = _definitions(name, function)
        place = re.sub(r"[^A-Za-z0-9_.\\-]+", "_", graph_name(name)).strip("_")
        self._names[place] += 1
        path = place if self._names[place] == 1 else f"{place}_{self._names[place] - 1}"
        unseen, run_at = 0, self._capture.stacks.of_call()
        run = self._capture.run(self._model, step, order=self._steps.order(step))
        library: Library = {each.signature.name: each for each in definitions}.__getitem__
        for number, definition in enumerate(definitions):
            stacks = self._capture.stacks.of_function(definition.signature.name)
            inside = f"{path}/" if not number else f"{path}/{graph_name(definition.signature.name)}/"
            for node in definition.node_def:
                shown = f"{inside}{node.name}"
                is_known = op_def_registry.get(node.op) is not None
                skip = self._selection.skip_of(node.op, shown) if is_known else "control flow"
                if not skip and are_handles(outputs_of(node, library) or ()):
                    skip = "handle"
                unseen += not skip
                stack = stack_of_node(node.name, stacks, run_at)
                run.skip(NamedOperator(node.op, shown, 0, arguments_of(node), stack), skip or "not observed")
        if unseen and function is not None:
            self._capture.note(_unseen(path))


def _unseen(name: str) -> str:
    return (
        f"the operators of {name} are not shown: a data set runs it in threads of the runtime; "
        "to see them, call the function on an element of the data set"
    )


def _is_plumbing(wrapper: Any) -> bool:
    """Whether a function is the framework's own: how Keras cuts arrays into batches, how a generator becomes a data set."""
    module = getattr(getattr(wrapper, "_func", None), "__module__", None) or ""
    return module.partition(".")[0] in ("keras", "tf_keras", "tensorflow")


def _with_inputs(dataset: Any) -> Iterator[Any]:
    """A data set, and those that it reads."""
    waiting, seen = [dataset], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dataset_ops.DatasetV2):
            yield each
            waiting += each._inputs()


def _definitions(name: str, function: Any) -> list[Any]:
    """The definition of a function, and those of all that it runs, in data sets of its own too."""
    library: Library = eager_context.context().get_function_def
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        for definition in reached(waiting.pop(), library):
            if definition.signature.name not in found:
                found[definition.signature.name] = definition
                waiting += [inner for node in definition.node_def for _, inner in hidden_functions(node)]
    own = getattr(function, "definition", None)
    if not found and own is not None:  # of a graph, and not of the eager program
        return [own]
    return list(found.values())
