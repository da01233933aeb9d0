"""Lists the operators of functions of data sets (`map`, `filter`, `flat_map`, `reduce`, ...), which run unobserved in threads of the runtime.

A data set is examined when it is iterated, reduced or asked for its element while a capture is open. The operators of its functions are
listed as `not observed`, and a note names the functions. Functions of TensorFlow's and Keras' own data handling are not operators of the program.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops, multi_device_iterator_ops
from tensorflow.python.eager import context as eager_context

from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.function_names import graph_name
from opdump.adapters.tensorflow.functions.steps import ProgramSteps
from opdump.adapters.tensorflow.graphs.dataset_operators import hidden_operators
from opdump.adapters.tensorflow.graphs.walks import reachable
from opdump.adapters.tensorflow.operator_kinds import ModelSlots

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
        for found in gc.get_objects():
            if issubclass(type(found), iterator_ops.OwnedIterator):
                self._remember(getattr(found, "_iterator_resource", None), getattr(found, "_dataset", None))
            elif issubclass(type(found), dataset_ops.DatasetV2):
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
