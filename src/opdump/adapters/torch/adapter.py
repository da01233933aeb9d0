"""PyTorch: everything that runs in eager mode, forward, backward and optimizer.

    with ADAPTER.attach(recorder, settings) as clock:
        train()

Joins the parts: the observer that knows steps and scopes switches the dispatch mode on for dumped steps and off for others.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from opdump import kernels
from opdump.adapters.settings import DumpComplete, Settings
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

from .compiled import CompiledCall, CompiledRegions
from .composites import ExactOperators
from .dispatch import CaptureMode
from .mode_stack import put_on, take_off
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
            statistics=plan.saves_statistics,
            elements=plan.saves_tensors,
            digests=plan.statistic_category if plan.saves_statistics else (),
            sample=plan.sample_num,
            device_extremes=plan.layout == "acl" and plan.saves_statistics,
            low_precision_on_device=plan.stat_calc_mode == "device" and plan.device_stat_precision_mode == "low",
        )

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[TrainingObserver]:
        """Captures while the block runs; what was begun is filed at its end, and nothing is left behind in torch."""
        capture = _Capture(recorder, settings)
        capture.open()
        try:
            yield capture.observer
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
        )
        self._mode = CaptureMode(
            plan, recorder, self.observer, rank_id=settings.rank_id, marked_functions=settings.marks.functions
        )
        self._regions = CompiledRegions(self._run_compiled, eager=settings.eager)
        self._exact = ExactOperators(self._mode, self._mode)
        self._threads = ThreadEntry(self._mode.on, forked=self._leave_child)
        self._on = False
        self._thread = threading.get_ident()
        self._process = os.getpid()
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
        with ExitStack() as undo:
            for part in (self._exact, self._regions, self._threads, self.observer):
                part.attach()
                undo.callback(part.detach)
            undo.pop_all()

    def close(self) -> None:
        for part in (self.observer, self._threads, self._regions, self._exact):
            part.detach()
        self._switch(False)
        self._mode.closed = True
        if not self._recorder.holding:
            self._file_step(self.observer.step)
        elif self._filed == self.observer.step - 1:
            # No other step came: what ran since belongs to the last one.
            self._recorder.fold_back(self._filed)
            self._file_step(self._filed)
        else:
            self._recorder.discard()
        self._recorder.matched_kernels |= self._mode.matched_kernels

    def step_begins(self, step: int) -> None:
        wanted = step in self._plan.steps
        self._switch(wanted)
        if wanted and step > self._plan.initial_iteration:
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
        if self._last_ended and self._stop_after_dump and not self._mode.recording:
            raise DumpComplete
        if not self._mode.recording:
            return
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


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from _tensors(value)


ADAPTER = TorchAdapter()
