"""The common state of sessions, functions and eager programs under one plan: the recorder, the models and their steps.

Each signature (a session's set of fetches, a traced function, the eager program) is a *model*, with a number, a name such as
`ge_default_20201120163719_2`, and steps of its own. See docs/tensorflow.md#models-and-steps.
"""

from __future__ import annotations

import gc
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from opdump.adapters.base import DumpComplete
from opdump.adapters.graph_runtime import GraphRun, RunEmitter, UniqueNames
from opdump.adapters.host import HostRuntime
from opdump.adapters.program_stacks import Stack
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.graphs.operator_kinds import ModelSlots
from opdump.adapters.tensorflow.stacks import Stacks
from opdump.graph import PARAMETER_PREFIX
from opdump.plan.selection import ModelFilter, ModelSelection
from opdump.plan.unmatched_names import ListMatches, with_nearest
from opdump.recorder import Recorder
from opdump.records import Memory

if TYPE_CHECKING:
    from opdump.adapters.tensorflow.sessions.subgraph import Subgraph
    from opdump.adapters.tensorflow.sessions.watches import ObservedValue

# Common to the process: models of two plans may be in one directory.
_NUMBERS: Final = itertools.count(1)


class GraphWriter(Protocol):
    """Writes the graph of a model."""

    def __call__(self, model: Model, computed: Any, *, is_computational: bool) -> object:
        """`computed` is the `Subgraph` of a session's signature, or the graph of a function."""

    def note_files(self) -> None:
        """Record in the dump which graph files belong to it, once there is a dump."""


@dataclass(frozen=True, slots=True)
class Model:
    """One signature."""

    name: str
    """The name in a `dump_list`, and the directory in the layout of devices; empty for single operators. In a program for Ascend devices it is
    `ge_default_{time}_{number}`, otherwise one of `names`.
    """
    number: int
    names: tuple[str, ...] = ()
    """All names by which a `dump_list` can select it."""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed run of a session: `run` is the session's, without capture, `seen` are the values watched in it."""

    model: Model
    step: int
    subgraph: Subgraph
    run: Callable[..., Any]
    feed_dict: Mapping[Any, Any] | None
    seen: Mapping[str, Sequence[ObservedValue]]


class FailuresOfRuns(Protocol):
    """Records the failed operators of sessions: `FailureDump`."""

    @property
    def whole(self) -> bool: ...
    def watched(self, subgraph: Subgraph) -> tuple[Any, ...]: ...
    def record(self, error: BaseException, failed: FailedRun) -> None: ...


class Variables:
    """The variables of the eager program, by the identity of their handle: a number, and a name that no other variable has."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._names: dict[int, str] = {}
        self._taken: Counter[str] = Counter()
        self._replacements = Replacements()

    def open(self) -> None:
        """Give names to all variables that exist, and to those that the program makes until `close`."""
        # Not later: while a thread makes a tuple, another one that looks at all objects would break it.
        for each in sorted(objects_of(BaseResourceVariable), key=_handle_of):
            self._add(each)
        original = BaseResourceVariable.__init__

        def make(variable: Any, *args: Any, **kwargs: Any) -> None:
            original(variable, *args, **kwargs)
            self._add(variable)

        self._replacements.replace(BaseResourceVariable, "__init__", make)

    def close(self) -> None:
        self._replacements.restore()

    def memory(self, variable: Hashable, shape: Sequence[int]) -> Memory:
        """The location of the value of a variable among the tensors of a step. A variable of a session is identified by its name."""
        steps = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return Memory(self._numbers.setdefault(variable, len(self._numbers)), 0, steps)

    def source(self, handle: int) -> str:
        """The source of the value of a variable in records; empty if the handle does not belong to a variable."""
        name = self._names.get(handle, "")
        return f"{PARAMETER_PREFIX}{name}" if name else ""

    def _add(self, variable: Any) -> None:
        handle = _handle_of(variable)
        if handle >= 0 and handle not in self._names:
            name = str(variable._handle_name).partition(":")[0] or "Variable"
            number, self._taken[name] = self._taken[name], self._taken[name] + 1
            self._names[handle] = f"{name}_{number}" if number else name


def _handle_of(variable: Any) -> int:
    """The identity of the handle of a variable; -1 if it has none, because it belongs to a graph."""
    return int(getattr(getattr(variable, "_handle", None), "_id", -1))


def objects_of(kind: type) -> Iterator[Any]:
    """All living objects of a class. Its subclasses are looked up once, because that takes long for an abstract class."""
    known: dict[type, bool] = {}
    for each in gc.get_objects():
        own = type(each)  # `isinstance` would call properties of the program's objects
        if own not in known:
            known[own] = issubclass(own, kind)
        if known[own]:
            yield each


@dataclass(slots=True)
class EagerTensors:
    """What is known of the tensors of the eager program in a step, by their identity."""

    makers: dict[int, str] = field(default_factory=dict)
    follow_backward: set[int] = field(default_factory=set)
    """Tensors that were computed from gradients, including these."""


class Capture:
    """One recorder, and the models found under it.

    `rank_id` and `device_id` are written to the records. `streams`: tensors are passed on one by one while a step runs instead of at its
    end, which bounds the memory. Emitting operators requires `lock`.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        rank_id: int = 0,
        device_id: int = 0,
        streams: bool = False,
        stop_after_dump: bool = False,
    ) -> None:
        self.recorder = recorder
        self.plan = recorder.plan
        self.device_id = device_id
        self.streams = streams
        self.write_graph: GraphWriter | None = None
        """Writes graphs; None to write none."""
        self.failures: FailuresOfRuns | None = None
        """Records the failed operators of sessions."""
        self.lock = threading.RLock()
        self.has_sessions = False
        """Whether sessions were started."""
        self.notes: list[str] = []
        """What the dump lacks in addition to skipped operators."""
        self.matches = ListMatches(self.plan.models, self.plan.dialect)
        self.operators_met: set[str] | None = None
        """Names of the operators of dumped sessions; None if there was none."""
        self.stacks = Stacks()
        self.variables = Variables()
        self.records_variables = not self.plan.layout_facts.by_model
        """Whether records have the values of variables. Dumps in the layout of devices have none, because a handle has no data there."""
        self.eager = EagerTensors()
        """The tensors of the running step of the eager program."""
        self._stop_after_dump = stop_after_dump
        self._emitter = RunEmitter(recorder, rank_id=rank_id, device_id=device_id)
        self._names: dict[int, UniqueNames] = {}
        """By the number of a model."""
        self._unasked: tuple[str, ...] = ()
        """The eager program, if a `dump_list` names other models."""
        self._ended: dict[tuple[str, ...], int] = {}
        """The names of a model -> the number after that of its last ended step, dumped or not."""

    def new_model(self, *names: str) -> Model:
        """A new model, and the program's names for it."""
        number = next(_NUMBERS)
        of_device = f"ge_default_{time.strftime('%Y%m%d%H%M%S')}_{number}"
        is_named = bool(names) and self.plan.names_models
        self.matches.model(names if is_named else ("ge_default",))
        wanted = {entry.model_name for entry in self.plan.models or ()}
        name = next((each for each in names if each in wanted), names[0]) if is_named else of_device
        return Model(name, number, (*names, of_device, "ge_default"))

    def eager_model(self, name: str) -> tuple[Model, ModelFilter]:
        """The operators outside models. They are single operators if there is a `dump_list` that does not name them."""
        models = self.plan.models
        if models is None or not self.plan.names_models or any(entry.model_name == name for entry in models):
            model = self.new_model(name)
            return model, self.filter_of(model)
        wanted = self.plan.single_operators
        self._unasked = (name,)
        return Model("", next(_NUMBERS)), ModelFilter.of_single_operators(models) if wanted else ModelFilter(())

    def shown(self, model: Model, op_name: str) -> str:
        """The name of an operator of a model in records; unique in layouts whose file names only have its last component."""
        if self.plan.layout_facts.by_model:
            return op_name
        return self._names.setdefault(model.number, UniqueNames()).of(op_name)

    def shown_source(self, model: Model, source: str) -> str:
        """The same for the tensor that an operator makes."""
        maker, colon, slot = source.rpartition(":")
        return f"{self.shown(model, maker)}:{slot}" if colon and not self.plan.layout_facts.by_model else source

    def selection(self, model_filter: ModelFilter, order: Sequence[str] = ()) -> ModelSlots:
        """The selection in a model whose operators run in this order."""
        for entry in model_filter.entries:
            for each in entry.ranges:
                if ModelFilter((ModelSelection(ranges=(each,)),)).in_ranges(order):
                    self.matches.opened((each,))
        return ModelSlots(self.plan, model_filter, model_filter.in_ranges(order) if order else None, self.matches)

    def note(self, text: str) -> None:
        """Add a note, unless it is already there."""
        if text not in self.notes:
            self.notes.append(text)

    def filter_of(self, model: Model) -> ModelFilter:
        """The entries of the plan's `dump_list` for a model. A device's name without time and number is one of its names."""
        return ModelFilter.of(self.plan.models, (model.name, *model.names))

    @property
    def is_over(self) -> bool:
        """Whether recording has stopped because the dump could not be written; the program continues without it."""
        return self.recorder.is_over

    def wants(self, step: int) -> bool:
        """Whether a step is dumped: the plan selects it, and no limit prevents it."""
        return step in self.plan.steps and self.recorder.bounds.wants(step)

    def run(
        self,
        model: Model,
        step: int,
        *,
        order: Iterator[int] | None = None,
        executions: Counter[str] | None = None,
        called_at: Stack = (),
    ) -> GraphRun:
        """A run of a model, which emits its operators: see `GraphRun`. `called_at` are the program lines that called it."""
        by_model = self.plan.layout_facts.by_model
        return GraphRun(
            self._emitter,
            model.name if by_model else self.plan.net_name,
            model.number,
            step,
            order=order,
            executions=executions,
            called_at=called_at,
            graph=None if by_model else self.recorder.graph(model.number, model.name),
        )

    def end_step(self, step: int) -> None:
        """End a step of a model. Raises DumpComplete if it was the last selected one, and the program is to end there."""
        self.recorder.end_step(step)
        self.complete(step)

    def complete(self, step: int) -> None:
        """Raises DumpComplete if no later step is selected, and the program is to end there."""
        if self._stop_after_dump and self.plan.steps.ends_by(step):
            raise DumpComplete

    def ended(self, names: tuple[str, ...], step: int) -> None:
        """A step of the model with these names has ended, dumped or not."""
        with self.lock:
            self._ended[names] = max(step + 1, self._ended.get(names, 0))

    def _report_circumstances(self) -> None:
        around, first = self.recorder.circumstances, self.plan.initial_iteration
        around.framework = "TensorFlow"
        around.first_step = first
        around.next_step = max(self._ended.values(), default=first)
        around.models_seen = tuple(sorted({names[0] for names in self._ended if names})) or self._unasked
        if self.plan.models is not None:
            wanted = {entry.model_name for entry in self.plan.models}
            around.executions = {
                name: following - first
                for names, following in self._ended.items()
                for name in names
                if name in wanted or (None in wanted and name == names[0])
            }

    def abandon(self) -> None:
        """In a forked process: renew the locks, whose holders do not exist there."""
        self.lock = threading.RLock()
        self.recorder.abandon()

    def close(self) -> None:
        """Write everything that remains, pass the notes to the recorder, and record the graph files in the dump."""
        if self.plan.names_models:
            if self._unasked:
                self.matches.model(self._unasked)
            for text in self.matches.texts():
                self.note(text)
            self.recorder.circumstances.chose_nothing = self.matches.chose_nothing
        elif self.operators_met is not None:
            named = {name for entry in self.plan.models or () for name in entry.layers or ()}
            if named and named.isdisjoint(self.operators_met) and self.operators_met:
                self.recorder.circumstances.chose_nothing = "names"
            for name in sorted(named - self.operators_met):
                text = f"dump_layer: {name!r} matched no operator; take a name from the graph file"
                self.note(with_nearest(text, name, self.operators_met))
        if self.write_graph is not None:
            with self.recorder.writing():
                self.write_graph.note_files()
        self.recorder.warnings += self.notes
        self._report_circumstances()


# The version of TensorFlow that runs here.

FRAMEWORK: Final = "tensorflow"
FRAMEWORK_VERSION: Final = str(tf.__version__)


def device_target() -> str:
    """The kind of device on which operators run."""
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def runtime() -> HostRuntime:
    """The runtime's description for a recording."""
    return HostRuntime(FRAMEWORK, FRAMEWORK_VERSION, device_target())
