"""Captures the operators that a MindSpore program runs one by one, and counts the steps of both modes.

pynative = PyNative(recorder, settings)
pynative.start()        # after the import of MindSpore
pynative.stop()         # removes all hooks and files everything
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
from opdump.adapters.mindspore.models import OperatorNames, Steps, models_of
from opdump.adapters.threads import ThreadEntry
from opdump.graph import PYNATIVE
from opdump.recorder import Recorder

if TYPE_CHECKING:
    from opdump.adapters.mindspore.pynative.interception import Interception
    from opdump.adapters.mindspore.pynative.recording import ModeStack, OperatorRecording
    from opdump.adapters.mindspore.pynative.tensors import Origin

_LOG = logging.getLogger("opdump")


class PyNative:
    """The operators of PyNative mode, and the steps of the program.

    It is a `StepController`. When a step has ended, and before it is filed, `when_step_ends` are called with its number in the program's
    thread.
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
        """The models, if the layout of the plan has operators by model."""
        self.given: Mapping[str, Origin] = {}
        """The origins of the arguments of the compiled function that was called last, by their names in its graph."""
        self._has_compiled = False
        """Whether compiled code other than optimizers ran."""
        self._optimizing = 0
        self._running = 0
        """The number of running calls of networks, of their gradients, and of compiled functions."""
        self._stack = ExitStack()
        self._order = itertools.count()

    @property
    def step(self) -> int:
        return self._steps.step

    @property
    def is_wanted(self) -> bool:
        """Whether the current step may be recorded. With models, this depends on their executions, so any step may be."""
        return self._steps.is_wanted if self.models is None else not self._recorder.is_over

    @property
    def is_in_model(self) -> bool:
        """Whether the current operator belongs to the network that was called last, and not to an optimizer."""
        return not self._optimizing and self._running > 0

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        self._steps.manual_step()

    def next_order(self) -> int:
        """The order of the next operator in its step."""
        return next(self._order)

    def start(self) -> None:
        """Intercept operators from now on. MindSpore has been imported; a warning is given if it has no dispatch mode."""
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
        from opdump.adapters.mindspore.pynative.recording import ModeStack, OperatorRecording

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
        """Remove all hooks, and file everything."""
        if self._recording is not None:
            self._recording.close(is_all=not self._has_compiled)
        self._note_circumstances()
        self._stack.close()
        self._steps.close()

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watch operators by name, and tensors of the program, from now on. Does nothing outside of watch mode."""
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
                "watch: compiled code ran (GRAPH_MODE, @ms.jit), and watched memory cannot be read between its operators; "
                "to watch them, run the program in PyNative mode: mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"
            )

    def _leave_child(self) -> None:
        """Stop recording in a forked process, without a call of MindSpore, whose threads do not exist there."""
        self._recording = None
        self._steps.began = lambda: None
        self._steps.when_step_ends.clear()
        if self._interception is not None:
            self._interception.close()
        if self._modes is not None:
            self._modes.forget()

    # Called by the interception (`Watcher`).

    @contextmanager
    def optimizer(self) -> Iterator[None]:
        self._optimizing += 1
        try:
            with self._steps.optimizer():
                yield
        finally:
            self._optimizing -= 1

    def cell(self, cell: Any, *, reads_data: bool) -> AbstractContextManager[None] | None:
        """A context for a call of a Cell; None if none is needed."""
        if self._interception is not None and self._interception.is_graph_mode():
            self._has_compiled = True
        if self._steps.may_count:
            return self._network(cell, reads_data=reads_data)
        recording = self._recording
        return None if recording is None or not self.is_wanted else recording.scopes.inside(cell)

    def compiled(
        self, function: Any, arguments: Mapping[str, Any], *, trains: bool, reads_data: bool
    ) -> AbstractContextManager[None]:
        recording = self._recording
        self.given = (recording.origins_of(arguments) or {}) if recording is not None and self.is_wanted else {}
        self._has_compiled = self._has_compiled or not self._optimizing
        if not self._steps.may_count:
            return nullcontext()
        return self._compiled(function, trains=trains, reads_data=reads_data)

    @contextmanager
    def _compiled(self, function: Any, *, trains: bool, reads_data: bool) -> Iterator[None]:
        with self._steps.network(id(function), trains=trains, reads_data=reads_data), self._model(function):
            yield

    @contextmanager
    def _model(self, model: Any) -> Iterator[None]:
        """The block runs a network or a compiled function of the program."""
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
        """The forward pass has returned results whose gradients are computed next."""
        if self._recording is not None and self.is_wanted:
            self._recording.follow(results)

    def viewed(self, whole: Any, part: Any) -> None:
        """The program has taken a part of a tensor by an index."""
        if self._recording is not None and self.is_wanted:
            self._recording.viewed(whole, part)

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
    def _network(self, cell: Any, *, reads_data: bool) -> Iterator[None]:
        """A call of a Cell outside of other networks. A Cell without parameters (a loss, data processing) does not count as a network."""
        is_network = any(True for _ in cell.get_parameters())
        is_outermost = self._steps.is_outermost
        with ExitStack() as stack:
            if is_network and self._interception is not None:
                trains = self._interception.trains(cell)
                stack.enter_context(self._steps.network(id(cell), trains=trains, reads_data=reads_data))
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
        """Switch the mode on in recorded steps and off in others. This is only possible in the thread that started the capture."""
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
    """Why single operators cannot be captured with this MindSpore; empty if they can."""
    try:
        has_mode = hasattr(importlib.import_module("mindspore.utils"), "MsDispatchMode")
    except ImportError:
        has_mode = False
    if has_mode:
        return ""
    version = importlib.import_module("mindspore").__version__
    return (
        f"operators of PyNative mode are not captured: MindSpore {version} has no MsDispatchMode (2.10 or later has it); compiled code "
        "(GRAPH_MODE, @ms.jit) is captured"
    )
