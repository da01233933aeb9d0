"""Names models as the program does, before they run, so that a `dump_list` can name them.

a tf.function                  train_step                its Python function
Keras fit, evaluate, predict   mlp, train_function       the Keras model (or its `name_model`), and its function
a signature of a SavedModel    serving_default, score    its key, and the saved function
a session                      train, loss               the operators that it fetches
the eager program              eager
"""

from __future__ import annotations

import functools
import gc
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opdump.adapters.program_marks import ModelNames
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.graphs.library import Definition, callees_of
from opdump.adapters.tensorflow.xla import plain_name

EAGER: Final = "eager"
_WRAPPER: Final = "signature_wrapper_"
_RESTORED: Final = "restored_function_body"
_OWNERS: Final = (
    ("keras.src.trainers.trainer", "Trainer"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer"),
    ("keras.src.engine.training", "Model"),
    ("tf_keras.src.engine.training", "Model"),
)
_METHODS: Final = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def function_names(name: str, definition: Definition) -> tuple[str, ...]:
    """The possible names of a traced function."""
    plain = plain_name(name)
    found = [plain]
    if plain.startswith(_WRAPPER):
        found = [*_signature_keys(name), plain.removeprefix(_WRAPPER), plain]
    elif plain == _RESTORED:
        found = [*(plain_name(callee.function) for node in definition.node_def for callee in callees_of(node)), plain]
    return tuple(dict.fromkeys(found))


def fetched_names(elements: Sequence[Any]) -> tuple[str, ...]:
    """The names of a session's fetches."""
    return tuple(dict.fromkeys(element.name.partition(":")[0] for element in elements))


def _signature_keys(name: str) -> Iterator[str]:
    """A signature's key is in the map that the program loaded, not in the function."""
    for found in gc.get_objects():
        if type(found).__name__ == "_SignatureMap":
            for key, function in found.items():
                if getattr(function, "name", b"") == name.encode():
                    yield str(key)


class KerasModels:
    """The Keras model that trains, is evaluated or predicts in a thread, while `watched` is open."""

    def __init__(self, given: ModelNames) -> None:
        self._given = given
        self._running = threading.local()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model that is running in this thread."""
        model = getattr(self._running, "model", None)
        if model is None:
            return ()
        given = self._given.of(model)
        return (*([] if given is None else [given]), str(model.name))

    @contextmanager
    def watched(self) -> Iterator[None]:
        with Replacements() as replacements:
            replace_methods(replacements, [(*owner, method) for owner in _OWNERS for method in _METHODS], self._around)
            yield

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(model: Any, *args: Any, **kwargs: Any) -> Any:
            before, self._running.model = getattr(self._running, "model", None), model
            try:
                return original(model, *args, **kwargs)
            finally:
                self._running.model = before

        return method


def replace_methods(
    replacements: Replacements, methods: Iterable[tuple[str, str, str]], around: Callable[[Callable[..., Any]], object]
) -> None:
    """Replace methods (module, class, name) by the result of `around`, if this version has them."""
    for module_name, class_name, name in methods:
        owner = getattr(imported_module(module_name), class_name, None)
        original = None if owner is None else vars(owner).get(name)
        if original is not None:
            replacements.replace(owner, name, around(original))


def imported_module(name: str) -> Any:
    """A module of an imported package; None if this version has no module with that name."""
    if name.partition(".")[0] not in sys.modules:
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
