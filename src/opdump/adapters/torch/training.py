"""Follows an unmodified training program: which step, which graph, which module, which phase is running now.

    with TrainingObserver(listener) as observer:
        train()                              # anywhere below, at any time:
        observer.step                        # 3
        position = observer.current()        # of this thread
        position.scope                       # "Default/network-LeNet/conv1-Conv2d"
        position.graph_id                    # 0; observer.graphs[0] == ("network-LeNet", True)

Modules, optimizers, backward and gradient scalers are watched from the first line of `attach` to `detach`; nothing of the
program is changed. docs/steps.md says how iterations and graphs are counted.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Literal, final

import torch
from torch import nn
from torch._guards import TracingContext
from torch.optim import Optimizer

from opdump.errors import CaptureStateError

from .training_hooks import Watch, install
from .training_listener import SilentListener, TrainingListener
from .training_position import Position, RunningOptimizer
from .training_scopes import OUTSIDE, RootScopes, compiled_original, is_network
from .training_steps import StepCounter


@final
class TrainingObserver:
    """Knows the step, the graph, the module scope and the phase of a running PyTorch program.

    `steps="manual"` counts iterations by `manual_step` alone. `class_names=False` leaves class names out of scopes.
    `marked` holds module instances and classes (with their subclasses): below them `Position.marked` is true.
    `first_step` is the number of the first iteration.
    """

    def __init__(
        self,
        listener: TrainingListener | None = None,
        *,
        steps: Literal["auto", "manual"] = "auto",
        class_names: bool = True,
        marked: Collection[object] = (),
        first_step: int = 0,
    ) -> None:
        self.listener: TrainingListener = SilentListener() if listener is None else listener
        self.graphs: list[tuple[str, bool]] = []
        self._counter = StepCounter(self, first=first_step, automatic=steps == "auto")
        self.step = first_step
        self._class_names = class_names
        self._marks: dict[int, tuple[nn.Module, bool]] = {}
        self._marked_classes: dict[type, bool] = {}
        for target in marked:
            self.mark(target)
        self._local = threading.local()
        self._lock = threading.RLock()
        self._roots: dict[int, RootScopes] = {}
        self._latest = (0, 0)  # graph_id and call_id of the network that was called last, by any thread
        self._calls = 0
        self._backwards = 0
        self._process = os.getpid()
        self._undo: Callable[[], None] | None = None

    # --- what the program does is read here

    def current(self) -> Position:
        """The position of the calling thread; the object stays the same for the life of the thread."""
        try:
            position: Position = self._local.position
        except AttributeError:
            position = self._local.position = Position(*self._latest)
        return position

    @property
    def scope(self) -> str:
        """`current().scope`."""
        return self.current().scope

    @property
    def phase(self) -> Literal["forward", "optimizer"]:
        """`current().phase`."""
        return self.current().phase

    @property
    def graph_id(self) -> int:
        """`current().graph_id`."""
        return self.current().graph_id

    @property
    def call_id(self) -> int:
        """`current().call_id`."""
        return self.current().call_id

    @property
    def provisional(self) -> bool:
        """The iteration before may be opened again: an optimizer ended it, and nothing that needs gradients ran since."""
        return self._counter.provisional

    @property
    def training_seen(self) -> bool:
        """A forward that needs gradients, a backward or an optimizer ran: iterations end by the rules of training."""
        return self._counter.training_seen

    def networks(self) -> Iterator[tuple[nn.Module, RootScopes]]:
        """The networks that were called so far and are alive, in the order of their first call."""
        for scopes in list(self._roots.values()):
            module = scopes.reference()
            if module is not None and scopes.network:
                yield module, scopes

    # --- what the user of the observer does

    def attach(self) -> TrainingObserver:
        """Start to follow the program. Raises `CaptureStateError` where that runs already."""
        if self._undo is not None:
            raise CaptureStateError(
                "this observer follows the program already; call detach() before attaching it again"
            )
        self._process = os.getpid()
        self._undo = install(
            Watch(
                call=self._call_module,
                optimizer_begins=self._optimizer_begins,
                optimizer_ends=self._optimizer_ends,
                backward=self._run_backward,
                scaler_update=self._update_scaler,
            )
        )
        try:
            self.listener.step_begins(self.step)
        except BaseException:
            self.detach()
            raise
        return self

    def detach(self) -> None:
        """Put everything back. May be called twice, and while modules run."""
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

        After an automatic end with nothing that needs gradients since, it is the same end. Raises `CaptureStateError` where
        the observer is not attached.
        """
        if self._undo is None:
            raise CaptureStateError("step() was called while nothing is captured; call it between start() and stop()")
        self._abandon(self.current())
        self._counter.end_by_hand()

    def mark(self, target: object, enabled: bool = True) -> None:
        """Set `Position.marked` inside a module, or inside all modules of a class; the innermost mark decides."""
        if isinstance(target, nn.Module):
            self._marks[id(target)] = (target, enabled)  # The module is kept: its identity must not pass to another.
        elif isinstance(target, type) and issubclass(target, nn.Module):
            self._marked_classes[target] = enabled
        else:
            raise CaptureStateError(
                f"a module or a module class can be marked, found {target!r}; give the module itself, e.g. model.layer1"
            )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let modules, optimizers and backward of this thread pass unseen: tracing and export run them, training does not."""
        position = self.current()
        position.suspended += 1
        try:
            yield
        finally:
            position.suspended -= 1

    # --- the counter tells

    def step_begins(self, step: int) -> None:
        self.step = step
        self.listener.step_begins(step)

    def step_ends(self, step: int, reopened: bool) -> None:
        self.listener.step_ends(step, reopened)

    # --- modules

    def _call_module(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            position: Position = self._local.position
        except AttributeError:
            position = self.current()
        root = position.root
        if root is None:
            return self._call_outside(position, original, module, args, kwargs)
        scope = position.scope
        inner = root.registered.get(id(module))
        if inner is None:
            inner = root.enter_unregistered(module, scope, walked=position.refreshed)
            position.refreshed = True
        position.scope = inner
        if not (self._marks or self._marked_classes):
            try:
                return original(module, *args, **kwargs)
            finally:
                position.scope = scope
        marked = position.marked
        position.marked = self._is_marked(module, marked)
        try:
            return original(module, *args, **kwargs)
        finally:
            position.scope, position.marked = scope, marked

    def _call_outside(
        self,
        position: Position,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A module is called outside every network: a network, a part of one that is recomputed, or a loss."""
        if position.suspended or self._elsewhere():
            return original(module, *args, **kwargs)
        self._abandon(position)
        before = (position.scope, position.phase, position.marked, position.tops)
        recomputing = torch._C._current_graph_task_id() != -1
        position.marked = self._is_marked(module, position.marked)
        try:
            if recomputing:
                return self._recompute(position, original, module, args, kwargs)
            if is_network(module):
                return self._call_network(position, original, module, args, kwargs)
            if position.tops is None:
                position.tops = self._scopes_of(module, network=False)
                position.scope = position.tops.scope
            else:
                position.scope = position.tops.find(module) or position.tops.enter_unregistered(
                    module, position.scope, walked=False
                )
            return original(module, *args, **kwargs)
        finally:
            position.scope, position.phase, position.marked, position.tops = before

    def _call_network(
        self,
        position: Position,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        scopes = self._scopes_of(module, network=True)
        training = compiled_original(module).training
        needs_gradients = torch.is_grad_enabled() and _needs_gradients(module, scopes, args, kwargs)
        self._counter.root_begins(needs_gradients=needs_gradients, training=training)
        position.graph_id = self._graph_of(scopes, training)
        position.call_id = self._next_call()
        self._latest = (position.graph_id, position.call_id)
        position.scope, position.phase, position.root, position.refreshed = scopes.scope, "forward", scopes, False
        try:
            self.listener.root_call_begins(module, args, kwargs, position.graph_id)
            result = original(module, *args, **kwargs)
            self.listener.root_call_ends(module)
        finally:
            position.root = None
        if not position.optimizers:
            self._counter.root_ends(needs_gradients=needs_gradients)
        return result

    def _recompute(
        self,
        position: Position,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        before = (position.graph_id, position.call_id, position.recomputing)
        scope = None
        for scopes in reversed(list(self._roots.values())):
            scope = scopes.find(module)
            if scope is not None:
                break
        else:
            scopes = self._scopes_of(module, network=False)
        if scopes.graph_ids:
            # The mode that the network ran in is not known here; the parts of it were in the same, and are still.
            position.graph_id = scopes.graph_ids.get(module.training, position.graph_id)
        position.scope = scope or scopes.scope
        position.call_id = self._next_call()
        position.root, position.refreshed, position.recomputing, position.phase = scopes, False, True, "forward"
        try:
            return original(module, *args, **kwargs)
        finally:
            position.root = None
            position.graph_id, position.call_id, position.recomputing = before

    def _scopes_of(self, module: nn.Module, *, network: bool) -> RootScopes:
        root = compiled_original(module)
        key = id(root)
        scopes = self._roots.get(key)
        if scopes is None or scopes.reference() is not root or scopes.network is not network:
            scopes = RootScopes(root, network=network, class_names=self._class_names)
            self._roots[key] = scopes
            weakref.finalize(root, _forget, self._roots, key, scopes).atexit = False
        return scopes

    def _graph_of(self, scopes: RootScopes, training: bool) -> int:
        graph_id = scopes.graph_ids.get(training)
        if graph_id is None:
            with self._lock:
                graph_id = scopes.graph_ids[training] = len(self.graphs)
                self.graphs.append((scopes.name, training))
            self.listener.graph_appears(graph_id, scopes.name, training)
        return graph_id

    def _is_marked(self, module: nn.Module, outside: bool) -> bool:
        mark = self._marks.get(id(module))
        if mark is not None:
            return mark[1]
        for kind in type(module).__mro__:
            if kind in self._marked_classes:
                return self._marked_classes[kind]
        return outside

    def _next_call(self) -> int:
        with self._lock:
            self._calls += 1
            return self._calls

    # --- optimizers

    def _optimizer_begins(self, optimizer: Optimizer, closure: object) -> Callable[..., Any] | None:
        """Returns what stands in for the closure: a closure is forward and backward, not optimizer."""
        position = self.current()
        if position.suspended or self._elsewhere():
            return None
        self._abandon(position)
        frame = sys._getframe(2)  # The one that runs `step`, if the hook is called by it.
        counts = False
        if not position.optimizers:
            counts = self._counter.optimizer_begins(
                closure=closure is not None, has_gradients=lambda: _has_gradients(optimizer)
            )
        running = RunningOptimizer(frame, position, counts)
        position.optimizers.append(running)
        if len(position.optimizers) == 1:
            position.call_id = self._next_call()
        position.phase = "optimizer"
        name = f"optimizer-{type(optimizer).__name__}" if self._class_names else "optimizer"
        position.scope = f"{OUTSIDE}/{name}"
        return self._as_forward(closure, running) if callable(closure) else None

    def _as_forward(self, closure: Callable[..., Any], outer: RunningOptimizer) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            position = self.current()
            inside = (position.scope, position.phase)
            position.scope, position.phase = outer.scope, outer.phase
            try:
                return closure(*args, **kwargs)
            finally:
                position.scope, position.phase = inside

        return forward

    def _optimizer_ends(self, optimizer: Optimizer) -> None:
        position = self.current()
        if position.suspended or self._elsewhere():
            return
        frame = sys._getframe(2)
        if all(running.frame is not frame for running in position.optimizers):
            return  # It started before this observer was attached.
        while position.optimizers:
            running = position.optimizers.pop()
            running.restore(position)
            if running.frame is frame:
                break
        if not position.optimizers:
            self.listener.optimizer_ends(optimizer)
            self._counter.optimizer_ends(running.counts, in_backward=torch._C._current_graph_task_id() != -1)

    def _abandon(self, position: Position) -> None:
        """Forget optimizers that failed: PyTorch calls its hooks after `step` only where it returned."""
        if not position.optimizers:
            return
        running: set[int] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        while position.optimizers and id(position.optimizers[-1].frame) not in running:
            position.optimizers.pop().restore(position)

    # --- backward and gradient scalers

    def _run_backward(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = self.current()
        if position.suspended or self._elsewhere():
            return original(*args, **kwargs)
        self._abandon(position)
        with self._lock:
            self._backwards += 1
        try:
            self._counter.backward_begins()
            return original(*args, **kwargs)
        finally:
            with self._lock:
                self._backwards -= 1
                outermost = self._backwards == 0
            if outermost:
                self._counter.backward_ends()

    def _update_scaler(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = self.current()
        if position.suspended or self._elsewhere():
            return original(*args, **kwargs)
        self._abandon(position)
        counts = self._counter.update_begins()
        result = original(*args, **kwargs)
        self._counter.update_ends(counts)
        return result

    def _elsewhere(self) -> bool:
        """Not the program's own run: a compiler or tracer runs its modules, or a forked data-loader worker is running."""
        return (
            os.getpid() != self._process
            or torch._C._get_tracing_state() is not None
            or TracingContext.try_get() is not None
        )


def _forget(roots: dict[int, RootScopes], key: int, scopes: RootScopes) -> None:
    if roots.get(key) is scopes:
        del roots[key]


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _needs_gradients(module: nn.Module, scopes: RootScopes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a parameter or an input, also one in lists and dicts of inputs, requires a gradient."""
    last = scopes.trained() if scopes.trained is not None else None
    if last is not None and last.requires_grad:
        return True
    for parameter in module.parameters():
        if parameter.requires_grad:
            scopes.trained = weakref.ref(parameter)
            return True
    pending: list[Any] = [args, kwargs]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(value.values())
    return False
