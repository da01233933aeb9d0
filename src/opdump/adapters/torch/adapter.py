"""Captures what runs in eager mode: forward, backward and optimizer.

    with ADAPTER.attach(recorder, settings) as clock:
        train()

This module connects the parts. The observer knows steps and scopes; `_Capture` switches the dispatch mode on for dumped steps and off
for others.
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

from opdump import kernels
from opdump.adapters.base import DumpComplete, Settings
from opdump.adapters.models import Models
from opdump.adapters.threads import ThreadEntry
from opdump.adapters.torch.calls import CallMode
from opdump.adapters.torch.compiled import CompiledRegions
from opdump.adapters.torch.composites import ExactOperators
from opdump.adapters.torch.device import Accelerators
from opdump.adapters.torch.dispatch import CaptureMode
from opdump.adapters.torch.distributed import FutureCallbacks, RpcCalls, worker_number
from opdump.adapters.torch.failures import FunctionFailures
from opdump.adapters.torch.isolation import HigherRecursionLimit, hidden_from_torch_modes, never_seen, no_active_modes
from opdump.adapters.torch.memory import PLAIN_CLASSES
from opdump.adapters.torch.mode_stack import InferenceBlocks, Loading, put_on, recording_here, take_off
from opdump.adapters.torch.names_by_release import is_lost, reason_of, reasons
from opdump.adapters.torch.naming import OperatorNames
from opdump.adapters.torch.private_names import CALLS, OPERATORS, without_modes
from opdump.adapters.torch.reader import TensorReader
from opdump.adapters.torch.schemas import nested_tensors
from opdump.adapters.torch.scopes import DumpSelection, RootScopes, class_name, is_network, unwrapped
from opdump.adapters.torch.training import TrainingListener, TrainingObserver
from opdump.errors import CaptureStateError
from opdump.interpreter.critical_sections import not_interrupted
from opdump.plan import DumpPlan
from opdump.plan.field_types import wrong_value
from opdump.recorder import Recorder, isolated_from_program


class TorchAdapter:
    """Captures PyTorch programs."""

    framework = "torch"
    measures_capture = True

    def __init__(self, accelerators: Accelerators | None = None) -> None:
        """`accelerators` are the devices of the process. Tests pass others, which treat host memory as device memory."""
        self._accelerators = Accelerators() if accelerators is None else accelerators

    @property
    def framework_version(self) -> str:
        return str(torch.__version__)

    @property
    def device_target(self) -> str:
        # `is_available` would initialise CUDA, and processes forked later could not use it.
        return "GPU" if torch.cuda.device_count() else "CPU"

    @property
    def group_rank(self) -> int | None:
        """The rank of this process in its process group or among RPC workers; None before it has joined one."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        return worker_number()

    def reader(self, plan: DumpPlan) -> TensorReader:
        return TensorReader(
            statistics=plan.takes_statistics,
            elements=plan.saves_tensors,
            names=_statistics(plan),
            sample=plan.sample_taken,
            device_extremes=plan.takes_device_extremes,
            low_precision_on_device=plan.stat_calc_mode == "device" and plan.device_stat_precision_mode == "low",
            accelerators=self._accelerators,
            rereads=plan.reread or not plan.mode.files_selected,
        )

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[_Capture]:
        """Captures while the block runs. At its end, writes the step that is in progress and undoes all changes to torch."""
        capture = _Capture(recorder, settings, self._accelerators)
        try:
            capture.open()
            yield capture
        finally:
            if capture.is_open:
                capture.close()
            else:
                capture.abandon()


class _Capture(TrainingListener):
    """One capture: reacts to steps and calls of networks, and switches the mode on and off."""

    def __init__(self, recorder: Recorder, settings: Settings, accelerators: Accelerators) -> None:
        plan = recorder.plan
        fails, in_models = plan.mode.failures_only, plan.mode.files_selected and plan.layout_facts.by_model
        self._plan = plan
        self._recorder = recorder
        self._stop_after_dump = settings.stop_after_dump
        self._marks = DumpSelection(settings.marks) if plan.selection == "marked" else None
        self.observer = TrainingObserver(
            self,
            steps=settings.steps,
            class_names=plan.class_names_in_scope,
            marks=self._marks,
            first_step=plan.initial_iteration,
            stopped=recorder.stopped,
            around=self._around if fails or in_models else None,
            is_model=lambda module: is_network(module) or (self._models is not None and self._models.is_wanted(module)),
        )
        self._names = OperatorNames()
        self._models = (
            Models(
                plan,
                settings.model_names,
                self._names,
                recorder.wants,
                unwrapped=unwrapped,
                class_name=class_name,
            )
            if in_models
            else None
        )
        self._mode = CaptureMode(
            plan,
            recorder,
            self.observer,
            rank_id=settings.rank_id,
            marks=self._marks,
            models=self._models,
            names=self._names,
            calls_only=self._models is not None and plan.dump_level == "op",
            accelerators=accelerators,
            storages=recorder.reader.storages if isinstance(recorder.reader, TensorReader) else None,
        )
        self._calls: CallMode | None = None
        records = self._models is not None and plan.dump_level != "kernel"
        if (records or fails) and not is_lost(CALLS):
            self._calls = CallMode(self._mode, recorder, records=records)
        failures = self._mode.failures
        self._functions = None if failures is None else FunctionFailures(failures.record)
        self._regions = CompiledRegions(self._mode.run_as_one, eager=settings.eager, loading=Loading(recorder.stopped))
        recorder.when_over = self._stop_recording
        self._exact = ExactOperators(self._mode)
        self._inference_blocks = InferenceBlocks()
        self._threads = ThreadEntry(self._inside, forked=self._leave_child)
        self._callbacks = FutureCallbacks(self._mode, self._inside)
        self._rpc = RpcCalls(self._mode, self._inside, recorder.place)
        self._elsewhere = 0
        """Number of network calls in threads that do not record."""
        self._on = False
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._watched_first = settings.watch
        recorder.when_placed.append(self._placed)
        self._networks: dict[int, nn.Module] = {}
        """The networks that ran in the current step, by graph ID. Kept after the step ends until another network runs."""
        self._updated: set[int] = set()
        """IDs of the parameters that were recorded when an optimizer of this step returned."""
        self._between = False
        """Whether the step was written and no network has run since."""
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._last_ended = False
        self._filed: int | None = None
        self._recursion_limit = HigherRecursionLimit()
        self.is_open = False
        """Whether all parts are attached."""

    @never_seen
    def open(self) -> None:
        if not os.environ.get("OPDUMP_THREADS"):
            # Use as many threads as torch does, so that a program limited to one core stays on it.
            kernels.set_threads(torch.get_num_threads())
        _check_watched(self._watched_first)
        for part in self._parts():
            part.attach()
        if self._watched_first:
            self.watch((), self._watched_first)
        self.is_open = True

    def abandon(self) -> str:
        """Restores torch and writes nothing: in a forked process, whose records belong to its parent, or after a failed `open`."""
        self._mode.closed = True
        self._mode.abandon()
        for part in reversed(self._parts()):
            part.detach()
        self._switch(False)
        take_off(self._mode)
        self._recursion_limit.restore()
        return ""

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # forked: `abandon` has cleaned up
        for part in reversed(self._parts()):
            part.detach()
        self._switch(False)
        self._mode.closed = True
        with hidden_from_torch_modes():
            self._close()
        self._mode.close()
        self._recursion_limit.restore()

    @isolated_from_program
    def _close(self) -> None:
        for found in (self._models, self._mode.watches):
            if found is not None:
                self._recorder.warnings += found.unmatched()
        if self._marks is not None:
            self._recorder.warnings += _unused_marks(self._marks)
        if self._elsewhere:
            self._recorder.warnings.append(
                f"networks were called {self._elsewhere} times in threads that were running before the capture began; their "
                "operators are missing. Begin the capture before these threads start"
            )
        self._note_circumstances()
        if self._mode.graphs.is_recording():
            if self._recorder.lose_step():
                self._recorder.warnings.append(
                    f"the capture ended while a device graph was being recorded; the rest of step {self.observer.step} is missing, "
                    "because writing it would have broken the graph. End the capture before the graph is recorded, or after"
                )
        elif not self._recorder.is_deferring:
            self._file_step(self.observer.step)
        elif self._filed == self.observer.step - 1:
            # No further step came, so the operators since belong to the last one.
            self._recorder.reassign_step(self._filed)
            self._file_step(self._filed)
        else:
            self._recorder.discard()
        self._recorder.matched_kernels |= self._mode.naming.matched_kernels
        self._recorder.warnings += [*reasons(), *self._mode.graphs.warnings(), *self._rpc.warnings()]
        if isinstance(self._recorder.reader, TensorReader):
            self._recorder.warnings += self._recorder.reader.warnings

    def _placed(self, rank: int) -> None:
        self._mode.naming.rank_id = rank

    @property
    def step(self) -> int:
        return self.observer.step

    def manual_step(self) -> None:
        self.observer.manual_step()

    def next_order(self) -> int:
        """The number of an operator of another framework that runs now. The rest of the step is recorded without the follower."""
        self._recorder.when_lost()
        return self._mode.naming.next_order()

    @never_seen
    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watches operators by name and tensors of the program from now on. Raises CaptureStateError if the capture is not a watch."""
        watches = self._mode.watches
        if watches is None:
            raise CaptureStateError(
                f"the running capture has the mode {self._plan.captures!r} and cannot watch; start one with "
                "opdump.capture(watch=[...], path=...)"
            )
        _check_watched(tensors)
        if nodes:
            watches.add_nodes(nodes)
        if tensors:
            watches.add_tensors(tensors, self._mode.naming.here())

    def marked(self, target: Any) -> None:
        """Called when `set_dump` marks `target`: warns if operators of it were already left out of the running step."""
        if self._marks is not None and self._mode.recording and self._marks.is_late(target):
            name = getattr(target, "__qualname__", None) or self._scope_of(target)
            self._recorder.warnings.append(
                f"set_dump: {name} was marked after some of its operators had run in step {self.observer.step}; "
                "these are missing from the step. Mark it before the step begins"
            )

    def named(self, model: Any, name: str) -> None:
        """Called when `name_model` names `model`: warns if earlier executions of it are missing."""
        if self._models is not None:
            self._models.renamed(model, name)

    def _note_circumstances(self) -> None:
        around, models = self._recorder.circumstances, self._models
        around.framework = "PyTorch"
        around.elsewhere = self._elsewhere
        around.unable = reason_of(OPERATORS)
        around.first_step, around.next_step = self._plan.initial_iteration, self.observer.step
        around.counts_every_step = models is not None
        if models is not None:
            around.executions, around.models_seen = models.executions, models.seen
            around.chose_nothing = models.chose_nothing

    def _scope_of(self, module: nn.Module) -> str:
        found = (scopes.find(module) for _, scopes in self.observer.networks)
        return next((scope for scope in found if scope is not None), type(module).__name__)

    def _parts(self) -> list[Any]:
        parts: list[Any] = [
            self._inference_blocks,
            self._exact,
            self._regions,
            self._threads,
            self._callbacks,
            self._rpc,
        ]
        parts += [self._mode.collectives, self.observer, self._mode.graphs]
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

    @never_seen
    @isolated_from_program
    def step_begins(self, step: int) -> None:
        # Model executions are counted separately from steps; whether one is selected is decided per operator.
        wanted = self._recorder.wants(step) if self._models is None else not self._recorder.is_over
        self._switch(wanted)
        if wanted and step > self._plan.initial_iteration:
            # Only the next forward shows whether another step follows.
            self._recorder.defer()

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        if self._recorder.losses is not None and os.getpid() == self._process:
            self._note_losses(roots)

    @contextmanager
    def backward_runs(self) -> Iterator[None]:
        before = self._on
        try:
            yield
        finally:
            if self._on is not before and threading.get_ident() == self._thread:
                # A step began or ended in a hook, and the autograd engine has since restored its own stack of modes.
                (put_on if self._on else take_off)(self._mode)

    @never_seen
    @isolated_from_program
    def _note_losses(self, roots: Sequence[torch.Tensor]) -> None:
        assert self._recorder.losses is not None
        for root in roots:
            if root.__class__ in PLAIN_CLASSES and root.numel() == 1 and root.is_floating_point():
                with no_active_modes():  # waits for the device, so `loss-spike` is not a default trigger
                    self._recorder.losses.note(float(root.detach()))

    @never_seen
    @isolated_from_program
    def step_ends(self, step: int, reopened: bool) -> None:
        if self._recorder.losses is not None:
            self._recorder.losses.end_step(step)
        if self._mode.recording:
            if reopened and self._recorder.is_deferring and self._filed == step - 1:
                # The previous step continues, so what ran since its optimizer returned belongs to it.
                self._recorder.reassign_step(step - 1)
                self._file_step(step - 1)
            else:
                self._file_step(step)
        if not reopened:
            self._filed = step if self._mode.recording else None
            self._last_ended = self._plan.steps.ends_by(step)

    def graph_appears(self, graph_id: int, name: str, training: bool) -> None:
        self._recorder.graph(graph_id, name)

    @never_seen
    @isolated_from_program
    def other_call_begins(self, scopes: RootScopes) -> None:
        root = scopes.reference()
        if self._mode.recording and root is not None and (self._models is not None or self._mode.watches is not None):
            self._names.learn(root, scopes)

    @never_seen
    @isolated_from_program
    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        # Not earlier: until a network runs again, a second optimizer may still belong to the last wanted step.
        models = self._models
        if self._last_ended and self._stop_after_dump and (models is not None or not self._mode.recording):
            raise DumpComplete
        if not self._mode.recording:
            return
        if not recording_here():
            if threading.get_ident() == self._thread:
                return  # recording is suspended (shape inference or export)
            self._elsewhere += 1
        scopes = self.observer.current().root
        if scopes is not None and (models is not None or self._mode.watches is not None):
            self._names.learn(module, scopes)
        if models is not None:
            models.begins(module, graph_id)
        if scopes is not None:
            module = scopes.whole(module)
        # A process that trains in a process group has joined it by now.
        self._recorder.place()
        if self._between:
            self._between = False
            self._networks.clear()
            self._updated.clear()
        self._networks[graph_id] = module
        with without_modes():
            self._mode.values.seed_parameters(module, graph_id, scopes)
            self._seed_optimizers(graph_id)
            for number, (_, tensor) in enumerate(nested_tensors([*args, *kwargs.values()], "")):
                self._mode.values.record_root_input(f"inputs{number}", graph_id, tensor)

    def _seed_optimizers(self, graph_id: int) -> None:
        for optimizer in [reference() for reference in self._optimizers.values()]:
            if optimizer is not None:
                self._mode.values.seed_optimizer_state(optimizer, graph_id)

    @not_interrupted
    @never_seen
    @isolated_from_program
    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        if self._mode.recording and os.getpid() == self._process:
            # Now, not at the end of the step: each optimizer's parameters are recorded right after their own update.
            updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            self._record_parameters(lambda parameter: id(parameter) in updated)
            self._updated |= updated

    def _file_step(self, step: int) -> None:
        if os.getpid() != self._process:
            return
        if self._mode.graphs.is_recording():
            # Writing would wait for the device and break the graph. These records are written with the next step.
            self._mode.next_step()
            return
        if not self._between:
            # A parameter with a gradient that no optimizer has applied yet is recorded when its optimizer runs.
            some = bool(self._updated)
            self._record_parameters(lambda p: id(p) not in self._updated and not (some and p.grad is not None))
            self._between = True
        with without_modes():
            self._mode.collectives.file_arrived(step_ends=True)
            self._recorder.end_step(step)
        self._mode.next_step()
        if self._marks is not None:
            self._marks.next_step()

    def _record_parameters(self, wanted: Callable[[nn.Parameter], bool]) -> None:
        with without_modes():
            for graph_id, module in self._networks.items():
                for name, parameter in module.named_parameters():
                    if wanted(parameter):
                        self._mode.values.record_value(name, graph_id, parameter)

    def _stop_recording(self) -> None:
        # An operator may be running under the mode, so it is removed from the stack later.
        self._mode.recording = False

    def _switch(self, on: bool) -> None:
        if on and not self._mode.recording:
            self._mode.provenance.clear()  # unrecorded operators may have written to any tensor since
        self._mode.recording = on
        # Other threads keep the mode while they run; this one has it only in dumped steps.
        if threading.get_ident() == self._thread:
            if on and not self._on:
                put_on(self._mode)
            elif self._on and not on:
                take_off(self._mode)
            self._on = on

    def _leave_child(self) -> None:
        # A forked data-loader worker inherits the mode stack of the forking thread, but records nothing.
        self._mode.closed = True
        self._mode.recording = False
        take_off(self._mode)
        if self._calls is not None:
            self._calls.detach()


def _unused_marks(marks: DumpSelection) -> Iterator[str]:
    if not marks.program and not marks.used:
        yield "set_dump: nothing is marked, and dump_mode 2 dumps only marked operators; call opdump.set_dump(net) in the program"
    for text in marks.unused():
        yield f"set_dump: no operator ran in {text}, which is marked"


def _check_watched(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise wrong_value("watch", name, tensor, "a torch.Tensor or the name of an operator")


def _statistics(plan: DumpPlan) -> Sequence[str]:
    if plan.mode.watches:
        return ("md5",)  # detects changes
    return plan.statistic_category if plan.saves_statistics else ()


ADAPTER = TorchAdapter()
