"""Follows an unmodified training program: its current step, graph, module and phase.

    with TrainingObserver(listener) as observer:
        train()                              # anywhere below, at any time:
        observer.step                        # 3
        position = observer.current()        # of this thread
        position.scope                       # "Default/network-LeNet/conv1-Conv2d"
        position.graph_id                    # 0; observer.graphs[0] == ("network-LeNet", True)

Modules, optimizers, backward and gradient scalers are watched from `attach` to `detach`; the program itself is not changed.
docs/steps.md describes how iterations and graphs are counted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Literal, final

import torch
from torch import nn
from torch.fx import GraphModule
from torch.optim import Optimizer

from opdump.adapters.torch.call_depth import NESTED, CallDepth
from opdump.adapters.torch.dump_selection import DumpSelection, Enclosing
from opdump.adapters.torch.loading import Loading, Stopped, raised
from opdump.adapters.torch.private_names import REPLICA, graph_task, tracing_context
from opdump.adapters.torch.training_hooks import Watch, install
from opdump.adapters.torch.training_networks import Networks
from opdump.adapters.torch.training_optimizers import Optimizers
from opdump.adapters.torch.training_position import Position, Running
from opdump.adapters.torch.training_scopes import RootScopes, compiled_original, is_network
from opdump.adapters.torch.training_steps import StepCounter
from opdump.errors import CaptureStateError

RunFunction = Callable[[], Any]
_PLACE = ("scope", "phase", "root", "refreshed", "graph_id", "call_id", "recomputing", "enclosing")


class TrainingListener:
    """Receives the events of a training program, in the thread where they happen. Exceptions reach the program."""

    def step_begins(self, step: int) -> None:
        """Operators now belong to `step`: called at `attach`, and after every `step_ends`."""

    def step_ends(self, step: int, reopened: bool) -> None:
        """The counter leaves `step`. With `reopened`, it returns to an iteration that had ended."""

    def graph_appears(self, graph_id: int, name: str, training: bool) -> None:
        """A network runs for the first time in this mode (training or not); `name` as in `TrainingObserver.graphs`."""

    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        """The program calls a network; the position is already inside it."""

    def other_call_begins(self, scopes: RootScopes) -> None:
        """The program calls a module that is not a network (a loss), or one below it; the position is already inside."""

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """The program starts a backward from `roots`, outside of a network."""

    def backward_runs(self) -> AbstractContextManager[object]:
        """Return a context that is open while autograd's engine runs, also inside a network.

        On its return, the engine resets the thread's dispatch modes to what they were at its start.
        """
        return nullcontext()

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """An outermost `optimizer.step` has returned: parameters have their new values, but the step has not ended yet."""


@final
class TrainingObserver:
    """Tracks the step, graph, module scope and phase of a running PyTorch program.

    With `steps="manual"`, only `manual_step` ends iterations. `class_names=False` leaves class names out of scopes. With
    `marks`, running calls of modules are tracked (`Position.enclosing`). `first_step` is the number of the first iteration.
    `around` receives `nn.Module.__call__` and returns its replacement, which is called inside the scope of the module.
    `depth` compensates for the additional calls between calls of modules.

    `step` is the current iteration. `graphs` has the (name, training) of every graph so far; its index is `graph_id`.
    """

    def __init__(
        self,
        listener: TrainingListener | None = None,
        *,
        steps: Literal["auto", "manual"] = "auto",
        class_names: bool = True,
        marks: DumpSelection | None = None,
        first_step: int = 0,
        around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        depth: CallDepth | None = None,
        stopped: Stopped = raised,
        is_model: Callable[[nn.Module], bool] = is_network,
    ) -> None:
        self.listener = TrainingListener() if listener is None else listener
        self.networks = Networks(class_names=class_names)
        self.graphs = self.networks.graphs
        self.step = first_step
        self.counter = StepCounter(
            self._step_begins, self.listener.step_ends, first=first_step, automatic=steps == "auto"
        )
        self._optimizers = Optimizers(
            self.counter, self.current, self._unseen, self._next_call, self._optimizer_ends, class_names
        )
        self.marks = marks
        self._local = threading.local()
        self._lock = threading.Lock()
        self._latest: tuple[RootScopes | None, int, int] = (None, 0, 0)
        """The network that was called last, with its graph and call."""
        self._calls = 0
        self._backwards = 0
        self._process = os.getpid()
        self._around = around
        self._is_model = is_model
        self._depth = CallDepth() if depth is None else depth
        self._loading = Loading(stopped)
        self._undo: Callable[[], None] | None = None

    # What the program does now

    def current(self) -> Position:
        """The position of the calling thread: the same object as long as the thread lives."""
        try:
            position: Position = self._local.position
        except AttributeError:
            _, graph_id, call_id = self._latest
            position = self._local.position = Position(graph_id, call_id, network_call=call_id)
        return position

    # What the user of the observer does

    def attach(self) -> TrainingObserver:
        """Start to follow the program. Raises `CaptureStateError` if already attached."""
        if self._undo is not None:
            raise CaptureStateError("this observer is already attached; call detach() before attaching it again")
        self._process = os.getpid()

        def own(undo: Callable[[], None]) -> None:
            self._undo = undo

        watch = Watch(
            wrap_call=self._wrap_call,
            optimizer_begins=self._optimizers.begin,
            optimizer_ends=self._optimizers.end,
            backward=self._run_backward,
            scaler_update=self._update_scaler,
            remember=self._remember,
        )
        try:
            install(watch, self._loading, own)
            self.listener.step_begins(self.step)
        except BaseException:
            self.detach()
            raise
        return self

    def detach(self) -> None:
        """Undo `attach`. May be called twice, and while modules run."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> TrainingObserver:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    def manual_step(self) -> None:
        """End the current iteration here; from now on nothing else ends one.

        If an iteration has just ended automatically and nothing needed gradients since, this confirms that end. Raises
        `CaptureStateError` if the observer is not attached.
        """
        if self._undo is None:
            raise CaptureStateError("step() was called while nothing is captured; call it between start() and stop()")
        self._optimizers.abandon_failed(self.current())
        self.counter.end_by_hand()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Ignore what this thread runs inside the block: tracing and export call modules on their own."""
        position = self.current()
        position.suspended += 1
        try:
            yield
        finally:
            position.suspended -= 1

    def _step_begins(self, step: int) -> None:
        self.step = step
        self.listener.step_begins(step)

    # Modules

    def _wrap_call(self, original: Callable[..., Any], alive: list[bool]) -> Callable[..., Any]:
        """The replacement of `nn.Module.__call__`. It runs for every module, so it is one function with few look-ups."""
        is_compiling = torch.compiler.is_compiling
        local, current, follows = self._local, self.current, self.marks is not None
        outside, get_frame, depth = self._call_outside, sys._getframe, self._depth
        plain = original
        if self._around is not None:
            original = self._around(original)
        own_calls = 1 if original is plain else 2  # calls of opdump per call of a module

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # Compilers trace through this function; with this check first, nothing of opdump enters their graphs.
            if is_compiling() or not alive[0]:
                return plain(module, *args, **kwargs)
            try:
                position: Position = local.position
            except AttributeError:
                position = current()
            root = position.root
            if root is None:
                return outside(position, original, module, args, kwargs)
            scope, enclosing, around = position.scope, position.enclosing, position.running
            inner = root.registered.get(id(module))
            if inner is None:
                inner = root.enter_unregistered(module, scope, walked=position.refreshed)
                position.refreshed = True
            running = Running(id(get_frame()), around)
            added = 0
            if running.level >= NESTED:
                # At this level, also compensate for the outer ones, which were negligible.
                added = own_calls * (NESTED if running.level == NESTED else 1)
                depth.add(added)
            position.scope = inner
            if follows:
                position.enclosing = Enclosing(module, root, enclosing)
            position.running = running
            try:
                return original(module, *args, **kwargs)
            finally:
                position.scope, position.enclosing, position.running = scope, enclosing, around
                if added:
                    depth.remove(added)

        return call

    def _call_outside(
        self,
        position: Position,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a module outside every network: a network, a part of one that is recomputed, or neither (a loss)."""
        if self._unseen(position):
            return original(module, *args, **kwargs)
        self._optimizers.abandon_failed(position)

        def run() -> Any:
            return original(module, *args, **kwargs)

        before = (position.scope, position.phase, position.enclosing, position.top, position.running)
        position.running = Running(id(sys._getframe(1)), position.running)
        try:
            if self.marks is not None:
                position.enclosing = Enclosing(module, None, position.enclosing)
            if graph_task() != -1:
                return self._recompute(position, module, run)
            scopes = self.networks.find(module)
            if scopes is None or not scopes.network:
                replica = REPLICA in module.__dict__
                whole = None if replica or position.top is not None else self.networks.around(module)
                if replica or not self._is_model(module):
                    self._enter_other(position, module, whole)
                    if position.top is not None:
                        self.listener.other_call_begins(position.top)
                    return run()
                scopes = whole or self.networks.add(module, network=True)
            return self._call_network(position, scopes, module, args, kwargs, run)
        finally:
            position.scope, position.phase, position.enclosing, position.top, position.running = before

    def _call_network(
        self,
        position: Position,
        scopes: RootScopes,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: RunFunction,
    ) -> Any:
        training = compiled_original(module).training
        needed = torch.is_grad_enabled() and self.networks.needs_gradients(scopes, module, args, kwargs)
        updated = needed and self.networks.updated() and not position.optimizers
        latest = self._latest[0]
        before = None if latest is None else latest.reference()
        again = latest is scopes or (before is not None and scopes.contains(before))
        self.counter.root_begins(needs_gradients=needed, training=training, updated=updated, again=again)
        graph_id = position.graph_id = self.networks.graph(scopes, training, self.listener.graph_appears)
        call_id = position.call_id = position.network_call = self._next_call()
        self._latest = (scopes, graph_id, call_id)
        position.scope, position.phase = scopes.find(module) or scopes.scope, "forward"
        position.root, position.refreshed = scopes, False
        try:
            self.listener.root_call_begins(module, args, kwargs, graph_id)
            result = run()
        finally:
            position.root = None
        if not position.optimizers:
            self.counter.root_ends(needs_gradients=needed)
        return result

    def _remember(self, function: Callable[..., Any], alive: list[bool]) -> Callable[..., Any]:
        """Wrap the function of a checkpoint that is made here, so that its recomputation has this position."""
        made = self.current()
        scope, root, graph_id, enclosing = made.scope, made.root, made.graph_id, made.enclosing

        def again(*args: Any, **kwargs: Any) -> Any:
            position = self.current()
            if not alive[0] or position.suspended or graph_task() == -1:
                return function(*args, **kwargs)
            if position.recomputing and position.root is root and position.scope == scope:
                return function(*args, **kwargs)  # a nested checkpoint, whose first run is part of a recomputation
            with self._recomputing(position, scope, root, graph_id, enclosing):
                return function(*args, **kwargs)

        return again

    def _recompute(self, position: Position, module: nn.Module, run: RunFunction) -> Any:
        """Backward recomputes a module without a checkpoint of PyTorch."""
        scopes = self.networks.owner(module, self._latest[0])
        if scopes is None:
            return run()
        scope = scopes.find(module) or scopes.scope
        graph_id = scopes.graph_ids.get(module.training, position.graph_id)
        enclosing = None if self.marks is None else Enclosing(module, scopes, None)
        with self._recomputing(position, scope, scopes, graph_id, enclosing):
            return run()

    @contextmanager
    def _recomputing(
        self, position: Position, scope: str, root: RootScopes | None, graph_id: int, enclosing: Enclosing | None
    ) -> Iterator[None]:
        before = [getattr(position, name) for name in _PLACE]
        position.scope, position.root, position.graph_id, position.enclosing = scope, root, graph_id, enclosing
        position.phase, position.call_id, position.recomputing = "forward", self._next_call(), True
        position.refreshed = False
        try:
            yield
        finally:
            for name, value in zip(_PLACE, before, strict=True):
                setattr(position, name, value)

    def _enter_other(self, position: Position, module: nn.Module, whole: RootScopes | None) -> None:
        """Enter a loss, an activation or a data transform: it has a scope but no graph. `whole`: the network that owns it."""
        if whole is not None:
            position.top = whole
            position.scope = whole.find(module) or whole.scope
        elif position.top is not None:
            inner = position.top.registered.get(id(module))
            position.scope = inner or position.top.enter_unregistered(module, position.scope, walked=False)
        elif REPLICA in module.__dict__:
            position.top = self.networks.add_replica(module, self._latest[0])
            position.scope = position.top.scope
        elif not isinstance(module, GraphModule):
            position.top = self.networks.find(module) or self.networks.add(module, network=False)
            position.scope = position.top.scope

    def _next_call(self) -> int:
        with self._lock:
            self._calls += 1
            return self._calls

    # Backward and gradient scalers

    def _run_backward(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = self.current()
        if self._unseen(position):
            return original(*args, **kwargs)
        self._optimizers.abandon_failed(position)
        with self._lock:
            self._backwards += 1
        try:
            # Inside a forward it is part of what the network computes (forces are gradients of an energy), not training.
            if position.root is None:
                self.counter.backward_begins()
                self.listener.backward_begins(args[0] if args else ())
            with self.listener.backward_runs():
                return original(*args, **kwargs)
        finally:
            with self._lock:
                self._backwards -= 1
                outermost = self._backwards == 0
            if outermost:
                self.counter.backward_ends()

    def _update_scaler(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = self.current()
        if position.updating or self._unseen(position):
            return original(*args, **kwargs)
        self._optimizers.abandon_failed(position)
        counts = self.counter.update_begins()
        position.updating = True
        try:
            result = original(*args, **kwargs)
        finally:
            position.updating = False
        self.counter.update_ends(counts)
        return result

    def _optimizer_ends(self, optimizer: Optimizer) -> None:
        self.networks.updated()  # so that the next forward does not take this update for one made by hand
        self.listener.optimizer_ends(optimizer)

    def _unseen(self, position: Position) -> bool:
        """Whether this is not the program's own run, but a compiler, a tracer or a forked data-loader worker."""
        return (
            position.suspended > 0
            or os.getpid() != self._process
            or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
            or tracing_context() is not None
        )
