"""PyTorch: everything that runs in eager mode, forward, backward and optimizer.

    with ADAPTER.attach(recorder, settings) as clock:
        train()

Joins the parts: the observer that knows steps and scopes switches the dispatch mode on for dumped steps and off for others.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from opdump import kernels
from opdump.adapters.settings import DumpComplete, Settings
from opdump.errors import CaptureStateError
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

from .calls import CallMode
from .compiled import CompiledCall, CompiledRegions
from .composites import ExactOperators
from .dispatch import CaptureMode
from .failures import FunctionFailures
from .mode_stack import put_on, take_off
from .models import Models
from .reader import TensorReader
from .threads import ThreadEntry
from .training import TrainingObserver
from .training_listener import SilentListener


class TorchAdapter:
    """Captures PyTorch programs."""

    framework = "torch"

    @property
    def framework_version(self) -> str:
        return str(torch.__version__)

    @property
    def device_target(self) -> str:
        return "GPU" if torch.cuda.is_available() else "CPU"

    def reader(self, plan: DumpPlan) -> TensorReader:
        """A reader that takes what the plan wants of a tensor."""
        return TensorReader(
            statistics=plan.saves_statistics or plan.captures == "overflow",
            elements=plan.saves_tensors,
            digests=_digests(plan),
            sample=plan.sample_num,
            device_extremes=plan.layout == "acl" and plan.saves_statistics,
            low_precision_on_device=plan.stat_calc_mode == "device" and plan.device_stat_precision_mode == "low",
        )

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[_Capture]:
        """Captures while the block runs; what was begun is filed at its end, and nothing is left behind in torch."""
        capture = _Capture(recorder, settings)
        capture.open()
        try:
            yield capture
        finally:
            capture.close()


class _Capture(SilentListener):
    """One capture: listens to the program and moves the mode on and off."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        plan = recorder.plan
        self._plan = plan
        self._recorder = recorder
        self._stop_after_dump = settings.stop_after_dump
        self.observer = TrainingObserver(
            self,
            steps=settings.steps,
            class_names=plan.class_names_in_scope,
            marked=settings.marks.modules,
            first_step=plan.initial_iteration,
            around=self._around if plan.layout == "acl" and plan.captures == "data" else None,
        )
        data, as_device = plan.captures == "data", plan.layout == "acl"
        self._models = Models(plan, settings.model_names) if as_device and data else None
        self._mode = CaptureMode(
            plan,
            recorder,
            self.observer,
            rank_id=settings.rank_id,
            marked_functions=settings.marks.functions,
            models=self._models,
            calls_only=self._models is not None and plan.dump_level == "op",
        )
        self._calls: CallMode | None = None
        records = self._models is not None and plan.dump_level != "kernel"
        fails = plan.captures == "exception"
        if records or fails:
            self._calls = CallMode(self._mode, recorder, records=records, fails=fails)
        self._functions = FunctionFailures(self._mode.record_failure) if fails else None
        self._waits = data and not as_device
        """Whether what runs after a step may still turn out to belong to it; elsewhere operators are filed at once."""
        self._regions = CompiledRegions(self._run_compiled, eager=settings.eager)
        self._exact = ExactOperators(self._mode, self._mode)
        self._threads = ThreadEntry(self._inside, forked=self._leave_child)
        self._on = False
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._watched_first = settings.watch
        self._networks: dict[int, nn.Module] = {}
        """The networks that ran in the current step, by graph number; after its end, until another one runs."""
        self._updated: set[int] = set()
        """Identities of the parameters that an optimizer of the step has recorded."""
        self._between = False
        """The step was filed, and no network has run since."""
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._last_ended = False
        self._filed: int | None = None
        """The step that was filed last."""

    def open(self) -> None:
        if not os.environ.get("OPDUMP_THREADS"):
            # As many threads as the program gave torch: one that keeps to one core stays on it.
            kernels.set_threads(torch.get_num_threads())
        _check_watched(self._watched_first)
        with ExitStack() as undo:
            for part in self._parts():
                part.attach()
                undo.callback(part.detach)
            undo.pop_all()
        if self._watched_first:
            self.watch((), self._watched_first)

    def close(self) -> None:
        for part in reversed(self._parts()):
            part.detach()
        self._switch(False)
        self._mode.closed = True
        for found in (self._models, self._mode.watches):
            if found is not None:
                self._recorder.warnings += found.unmatched()
        if not self._recorder.holding:
            self._file_step(self.observer.step)
        elif self._filed == self.observer.step - 1:
            # No other step came: what ran since belongs to the last one.
            self._recorder.fold_back(self._filed)
            self._file_step(self._filed)
        else:
            self._recorder.discard()
        self._recorder.matched_kernels |= self._mode.naming.matched_kernels

    @property
    def step(self) -> int:
        """The iteration that the program is in."""
        return self.observer.step

    def manual_step(self) -> None:
        """Ends the current iteration here."""
        self.observer.manual_step()

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watches operators by name and tensors of the program from now on. Raises CaptureStateError in another mode."""
        watches = self._mode.watches
        if watches is None:
            raise CaptureStateError(
                f"the running capture has the mode {self._plan.captures!r} and watches nothing; begin it with "
                "opdump.capture(watch=[...], path=...)"
            )
        _check_watched(tensors)
        if nodes:
            watches.add_nodes(nodes)
        if tensors:
            watches.add_tensors(tensors, self._mode.naming.here())

    def _parts(self) -> list[Any]:
        parts = [self._exact, self._regions, self._threads, self.observer]
        return parts + [part for part in (self._calls, self._functions) if part is not None]

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self._calls is None else self._calls.around(call)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._mode.on())
            if self._calls is not None:
                stack.enter_context(self._calls.on())
            yield

    def step_begins(self, step: int) -> None:
        # Executions of models are counted apart, so there the operators themselves are asked.
        wanted = self._models is not None or step in self._plan.steps
        self._switch(wanted)
        if wanted and step > self._plan.initial_iteration and self._waits:
            # Whether another step follows at all, the next forward will tell.
            self._recorder.hold()

    def step_ends(self, step: int, reopened: bool) -> None:
        if self._mode.recording:
            if reopened and self._recorder.holding and self._filed == step - 1:
                # The step before goes on, so what ran since its optimizer returned lies within it.
                self._recorder.fold_back(step - 1)
                self._file_step(step - 1)
            else:
                self._file_step(step)
        if not reopened:
            self._filed = step if self._mode.recording else None
            last = self._plan.steps.last
            self._last_ended = last is not None and step >= last

    def graph_appears(self, graph_id: int, name: str, training: bool) -> None:
        self._recorder.graph(graph_id, name)

    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        # Not earlier: until a network runs again, a second optimizer may still belong to the last wanted step.
        models = self._models
        if self._last_ended and self._stop_after_dump and (models is not None or not self._mode.recording):
            raise DumpComplete
        if not self._mode.recording:
            return
        if models is not None:
            models.begins(module, graph_id)
        if self._between:
            self._between = False
            self._networks.clear()
            self._updated.clear()
        self._networks[graph_id] = module
        with _disable_current_modes():
            self._mode.seed_parameters(module, graph_id, self.observer.current().root)
            for reference in self._optimizers.values():
                optimizer = reference()
                if optimizer is not None:
                    self._mode.seed_optimizer_state(optimizer, graph_id)
            for number, tensor in enumerate(_tensors([*args, *kwargs.values()])):
                self._mode.record_root_input(f"inputs{number}", graph_id, tensor)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        if self._mode.recording and os.getpid() == self._process:
            # Not only at the end of the step: what a second optimizer updates would be recorded before it does.
            updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            self._record_parameters(lambda parameter: id(parameter) in updated)
            self._updated |= updated

    def _file_step(self, step: int) -> None:
        if os.getpid() != self._process:
            return
        if not self._between:
            # A gradient that none of the step's optimizers applied waits for one that has yet to run.
            some = bool(self._updated)
            self._record_parameters(lambda p: id(p) not in self._updated and not (some and p.grad is not None))
            self._between = True
        with _disable_current_modes():
            self._recorder.end_step(step)
        self._mode.next_step()

    def _record_parameters(self, wanted: Callable[[nn.Parameter], bool]) -> None:
        with _disable_current_modes():
            for graph_id, module in self._networks.items():
                for name, parameter in module.named_parameters():
                    if wanted(parameter):
                        self._mode.record_value(name, graph_id, parameter)

    def _switch(self, on: bool) -> None:
        self._mode.recording = on
        # Other threads keep the mode while they work; this one has it in dumped steps only.
        if threading.get_ident() == self._thread:
            if on and not self._on:
                put_on(self._mode)
            elif self._on and not on:
                take_off(self._mode)
            self._on = on

    def _run_compiled(self, name: str, function: CompiledCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._mode.run_as_one(name, function, args, kwargs)

    def _leave_child(self) -> None:
        # A forked data-loader worker inherits the stack of modes of the thread that forked; it records nothing.
        self._mode.closed = True
        self._mode.recording = False
        take_off(self._mode)
        if self._calls is not None:
            self._calls.detach()


def _check_watched(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"watch: {name} is {tensor!r}, expected a torch.Tensor or the name of an operator")


def _digests(plan: DumpPlan) -> Sequence[str]:
    if plan.captures == "watch":
        return ("md5",)  # by which a change is found
    return plan.statistic_category if plan.saves_statistics else ()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from _tensors(value)


ADAPTER = TorchAdapter()
