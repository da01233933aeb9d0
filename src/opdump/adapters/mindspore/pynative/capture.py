"""Captures what a MindSpore program runs operator by operator, and counts its steps in both modes.

pynative = PyNative(recorder, settings)
pynative.start()        # MindSpore is imported by now
pynative.stop()         # everything is as it was, and what was recorded is filed
"""

from __future__ import annotations

import importlib
import itertools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from opdump.adapters.base import Settings
from opdump.adapters.mindspore.models import OperatorNames, models_of
from opdump.adapters.mindspore.steps import Steps
from opdump.adapters.threads import ThreadEntry
from opdump.graph import PYNATIVE
from opdump.recorder import Recorder

if TYPE_CHECKING:
    from opdump.adapters.mindspore.pynative.interception import Interception
    from opdump.adapters.mindspore.pynative.makers import Origin
    from opdump.adapters.mindspore.pynative.modes import ModeStack
    from opdump.adapters.mindspore.pynative.recording import OperatorRecording

_LOG = logging.getLogger("opdump")


class PyNative:
    """The operators of PyNative mode, and the steps of the program.

    Its methods are those of a `StepController`. `when_step_ends` are called with the number of a step in the program's thread when it has
    ended, before it is filed.
    """

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._steps = Steps(
            recorder,
            first=recorder.plan.initial_iteration,
            manual=settings.steps == "manual",
            stop_after_dump=settings.stop_after_dump,
        )
        self.when_step_ends = self._steps.when_step_ends
        self.when_step_ends.append(lambda _: self._end_step())
        self._home = threading.get_ident()
        self._recording: OperatorRecording | None = None
        self._modes: ModeStack | None = None
        self._interception: Interception | None = None
        self._names = OperatorNames()
        self.models = models_of(recorder.plan, settings.model_names, self._names, recorder.wants)
        """The models of a plan that files operators by model."""
        self.given: Mapping[str, Origin] = {}
        """Where the arguments of the compiled function that was called last come from, by their names in its graph."""
        self._has_compiled = False
        """Whether compiled code ran, optimizers apart."""
        self._optimizing = 0
        self._running = 0
        """Calls of networks, of their gradients, and of compiled functions that run."""
        self._stack = ExitStack()
        self._order = itertools.count()

    @property
    def step(self) -> int:
        return self._steps.step

    @property
    def is_wanted(self) -> bool:
        """Whether the program may be in a step that is recorded: executions of models are counted apart."""
        return self._steps.is_wanted if self.models is None else not self._recorder.is_over

    @property
    def is_in_model(self) -> bool:
        """Whether what runs now belongs to the network that was called last, and not to an optimizer."""
        return not self._optimizing and self._running > 0

    def manual_step(self) -> None:
        """Ends the current step; from the first call on nothing else ends one."""
        self._steps.manual_step()

    def next_order(self) -> int:
        """The place of the next operator among all of its step."""
        return next(self._order)

    def start(self) -> None:
        """Sees from now on what the program runs. MindSpore is there; one without a dispatch mode is warned of."""
        self._home = threading.get_ident()
        from opdump.adapters.mindspore.pynative.interception import Interception

        self._interception = Interception(self)
        self._stack.callback(self._interception.close)
        self._interception.open()
        self._steps.has_optimizer = self._interception.has_optimizer()
        if lacks := _lacks_dispatch():
            self._recorder.warnings.append(lacks)
            _LOG.warning("opdump: %s", lacks)
            return
        from opdump.adapters.mindspore.pynative.modes import ModeStack
        from opdump.adapters.mindspore.pynative.recording import OperatorRecording

        self._recording = OperatorRecording(
            self._recorder,
            self._settings,
            lambda: self._steps.step,
            self.next_order,
            names=self._names,
            models=self.models,
            is_in_model=lambda: self.is_in_model,
        )
        self._modes = ModeStack(self._dispatched)
        self._stack.callback(self._modes.close)
        self._modes.open()
        self._steps.began = self._follow_step
        threads = ThreadEntry(self._modes.entered, forked=self._leave_child)
        self._stack.callback(threads.detach)
        threads.attach()
        self._follow_step()

    def stop(self) -> None:
        """Takes everything out again, and files what is recorded."""
        if self._recording is not None:
            self._recording.close(is_all=not self._has_compiled)
        self._note_circumstances()
        self._stack.close()
        self._steps.close()

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watches operators by name and tensors of the program from now on, in watch mode."""
        if self._recording is not None:
            self._recording.watch(nodes, tensors)

    def _note_circumstances(self) -> None:
        around, models = self._recorder.circumstances, self.models
        around.marks = bool(self._settings.marks)
        around.counts_every_step = models is not None
        if models is not None:
            self._recorder.warnings += models.unmatched()
            around.executions, around.models_seen = models.executions, models.seen
            around.chose_nothing = models.chose_nothing
        if self._recorder.plan.mode.watches and self._has_compiled:
            self._recorder.warnings.append(
                "watch: compiled code ran (GRAPH_MODE, @ms.jit), and what watched memory holds between its operators cannot be seen; "
                "to watch them run the program in PyNative mode: mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"
            )

    def _leave_child(self) -> None:
        """In a forked process, which has none of MindSpore's threads: operators pass by, and MindSpore is not asked for anything."""
        self._recording = None
        self._steps.began = lambda: None
        self._steps.when_step_ends.clear()
        if self._interception is not None:
            self._interception.close()
        if self._modes is not None:
            self._modes.forget()

    # What the interception tells.

    @contextmanager
    def optimizer(self) -> Iterator[None]:
        self._optimizing += 1
        try:
            with self._steps.optimizer():
                yield
        finally:
            self._optimizing -= 1

    def cell(self, cell: Any) -> AbstractContextManager[None] | None:
        """Around a call of a Cell; None where nobody wants to know of it."""
        if self._interception is not None and self._interception.is_graph_mode():
            self._has_compiled = True
        if self._steps.may_count:
            return self._network(cell)
        recording = self._recording
        return None if recording is None or not self.is_wanted else recording.scopes.inside(cell)

    def compiled(self, function: Any, arguments: Mapping[str, Any], *, trains: bool) -> AbstractContextManager[None]:
        recording = self._recording
        self.given = (recording.origins_of(arguments) or {}) if recording is not None and self.is_wanted else {}
        self._has_compiled = self._has_compiled or not self._optimizing
        return self._compiled(function, trains=trains) if self._steps.may_count else nullcontext()

    @contextmanager
    def _compiled(self, function: Any, *, trains: bool) -> Iterator[None]:
        with self._steps.network(id(function), trains=trains), self._model(function):
            yield

    @contextmanager
    def _model(self, model: Any) -> Iterator[None]:
        """What runs in the block belongs to a network or a compiled function of the program."""
        if self.models is not None:
            self.models.begins(model, PYNATIVE)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def has_made_optimizer(self) -> None:
        self._steps.has_optimizer = True

    @contextmanager
    def gradient(self) -> Iterator[None]:
        is_outermost = self._steps.is_outermost
        with self._steps.gradient():
            if is_outermost:
                self._begin_anew()
            yield

    def forward_ended(self, results: Any) -> None:
        """The forward has given results, whose gradients come next."""
        if self._recording is not None and self.is_wanted:
            self._recording.follow(results)

    @contextmanager
    def backward(self) -> Iterator[None]:
        recording = self._recording
        if recording is None:
            yield
            return
        before, recording.is_backward = recording.is_backward, True
        self._running += 1
        try:
            yield
        finally:
            recording.is_backward = before
            self._running -= 1

    @contextmanager
    def _network(self, cell: Any) -> Iterator[None]:
        """A call of a Cell that no other runs; one without parameters is a loss or a part of the data, and no network."""
        is_network = any(True for _ in cell.get_parameters())
        is_outermost = self._steps.is_outermost
        with ExitStack() as stack:
            if is_network and self._interception is not None:
                stack.enter_context(self._steps.network(id(cell), trains=self._interception.trains(cell)))
                if is_outermost:
                    self._begin_anew()
                stack.enter_context(self._model(cell))
            if self._recording is not None and self.is_wanted:
                self._recording.know_parameters(cell.get_parameters())
                stack.enter_context(self._recording.scopes.inside(cell))
            yield

    # Steps.

    def _begin_anew(self) -> None:
        self._follow_step()
        if self._recording is not None:
            self._recording.names.restart()

    def _follow_step(self) -> None:
        """The mode is on in a step that is wanted, and off in others; nobody can put it on in another thread."""
        if self._modes is None or threading.get_ident() != self._home:
            return
        if self.is_wanted:
            self._modes.enter()
        else:
            self._modes.leave()

    def _end_step(self) -> None:
        self._order = itertools.count()
        if self._recording is not None:
            self._recording.end_step()

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        recording = self._recording
        if recording is None or not self.is_wanted:
            return func(*args, **kwargs) if kwargs else func(*args)
        return recording.run(func, args, kwargs)


def _lacks_dispatch() -> str:
    """Why operators cannot be seen one by one with this MindSpore; empty where they can."""
    try:
        has_mode = hasattr(importlib.import_module("mindspore.utils"), "MsDispatchMode")
    except ImportError:
        has_mode = False
    if has_mode:
        return ""
    version = importlib.import_module("mindspore").__version__
    return (
        f"operators of PyNative mode are not captured: MindSpore {version} has no MsDispatchMode, which came with 2.10; compiled code "
        "(GRAPH_MODE, @ms.jit) is"
    )
