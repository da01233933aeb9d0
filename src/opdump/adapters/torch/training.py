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

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Literal, final

import torch
from torch import nn
from torch.amp import grad_scaler
from torch.fx import GraphModule
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.isolation import never_seen
from opdump.adapters.torch.mode_stack import Loading, Stopped, raised
from opdump.adapters.torch.private_names import (
    REPLICA,
    RUN_BACKWARD,
    checkpoint_generator,
    graph_task,
    load_profiler,
    run_backward,
    tracing_context,
    version_of,
)
from opdump.adapters.torch.scopes import (
    OUTSIDE,
    DumpSelection,
    Enclosing,
    Position,
    RootScopes,
    Running,
    class_name,
    compiled_original,
    is_network,
    part_name,
    unwrapped,
)
from opdump.adapters.torch.training_steps import Optimizers, StepCounter
from opdump.errors import CaptureStateError

# Assigns graph numbers to the networks that a program calls.
#
# A graph is a network in one mode (training or not); graphs are numbered in the order of first calls.

_SNAPSHOTS = sys.version_info < (3, 13)
"""Whether reading a function's locals leaves a copy in its frame, which would keep the program's objects alive."""


class Networks:
    """The modules that the program called directly, as long as they live."""

    def __init__(self, *, class_names: bool) -> None:
        self.graphs: list[tuple[str, bool]] = []
        self._class_names = class_names
        self._roots: dict[int, RootScopes] = {}
        self._parts: dict[int, tuple[weakref.ref[nn.Module], RootScopes | None]] = {}
        """For modules that the program called and that were not networks then: the network that they belong to."""
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[nn.Module, RootScopes]]:
        for scopes in list(self._roots.values()):
            module = scopes.reference()
            if module is not None and scopes.network:
                yield module, scopes

    def find(self, module: nn.Module) -> RootScopes | None:
        """The scopes of a module that the program called before; None the first time."""
        root = compiled_original(module)
        scopes = self._roots.get(id(root))
        return scopes if scopes is not None and scopes.reference() is root else None

    def around(self, module: nn.Module) -> RootScopes | None:
        """The network to which a module belongs that the program calls directly; None without one.

        It is a network with the same parameters, if one wraps the other (`DistributedDataParallel`, FSDP, an adapter), or a
        network whose method is running. It is determined at the first call and then kept.
        """
        part = compiled_original(module)
        known = self._parts.get(id(part))
        if known is not None and known[0]() is part:
            return known[1]
        scopes = next((each for root, each in self if _is_same(root, part) or _is_same(part, root)), None)
        if scopes is None:
            owner = _outermost_owner(part)
            if owner is not None:
                scopes = self.find(owner)
                if scopes is None or not scopes.network:
                    scopes = self.add(owner, network=True)
                if not scopes.contains(part):
                    scopes.refresh()  # it was registered after the last walk
        self._parts = {key: each for key, each in self._parts.items() if each[0]() is not None}
        self._parts[id(part)] = (weakref.ref(part), scopes)
        return scopes

    def add(self, module: nn.Module, *, network: bool, above: str = OUTSIDE) -> RootScopes:
        root = compiled_original(module)
        name = part_name("network", root, self._class_names) if network else class_name(root)
        scopes = RootScopes(root, f"{above}/{name}", network=network, class_names=self._class_names)
        self._roots = {key: known for key, known in self._roots.items() if known.reference() is not None}
        self._roots[id(root)] = scopes
        return scopes

    def add_replica(self, module: nn.Module, original: RootScopes | None) -> RootScopes:
        """The scopes of a copy that `DataParallel` makes for one call and runs in a thread."""
        above = OUTSIDE if original is None else original.scope
        scope = f"{above}/{part_name('module', module, self._class_names)}"
        return RootScopes(module, scope, network=False, class_names=self._class_names)

    def owner(self, module: nn.Module, latest: RootScopes | None) -> RootScopes | None:
        """The network that recomputes `module`: preferably one that contains it, rather than itself, and the latest."""
        known = [*([] if latest is None else [latest]), *reversed(list(self._roots.values()))]
        holders = [scopes for scopes in known if scopes.find(module) is not None]
        return next((scopes for scopes in holders if scopes.reference() is not module), holders[0] if holders else None)

    def graph(self, scopes: RootScopes, training: bool, appears: Callable[[int, str, bool], None]) -> int:
        """The graph of a network in a mode; `appears` is called if it is new."""
        graph_id = scopes.graph_ids.get(training)
        if graph_id is None:
            with self._lock:
                graph_id = scopes.graph_ids[training] = len(self.graphs)
                self.graphs.append((scopes.name, training))
            appears(graph_id, scopes.name, training)
        return graph_id

    @never_seen
    def needs_gradients(
        self, scopes: RootScopes, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether a parameter or an input requires a gradient.

        The parameter that did last time is checked first, so that large models are not walked at every call.
        """
        remembered = scopes.trained() if scopes.trained is not None else None
        if remembered is not None and remembered.requires_grad and compiled_original(module) is scopes.reference():
            return True
        whole = compiled_original(module) is scopes.reference()
        for parameter in module.parameters():
            if parameter.requires_grad:
                if whole or remembered is None:
                    scopes.trained = weakref.ref(parameter)
                    scopes.trained_version = version_of(parameter)
                return True
        return _requires_grad(args, kwargs)

    @never_seen
    def updated(self) -> bool:
        """Whether parameters of any network changed since the last call; one parameter per network is checked."""
        changed = False
        for scopes in list(self._roots.values()):
            parameter = scopes.trained() if scopes.trained is not None else None
            if parameter is not None and version_of(parameter) != scopes.trained_version:
                scopes.trained_version = version_of(parameter)
                changed = True
        return changed


def _is_same(outer: nn.Module, inner: nn.Module) -> bool:
    """Whether `outer` only wraps `inner`: it contains `inner` and has no other parameters."""
    if inner in unwrapped(outer)[1:]:
        return True
    if all(part is not inner for part in outer.modules()):
        return False
    inside = {id(parameter) for parameter in inner.parameters()}
    return bool(inside) and all(id(parameter) in inside for parameter in outer.parameters())


def _requires_grad(*values: Any) -> bool:
    """Whether a tensor in these values, or in lists and dicts of them, requires a gradient."""
    pending = list(values)
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


def _outermost_owner(module: nn.Module) -> nn.Module | None:
    """The outermost module that contains `module` and has a running method; None without one.

    PyTorch modules have no parents, so running methods are searched: `training_step` of a LightningModule calls
    `self.net(x)`. This happens once per module that the program calls, not per call.
    """
    original = compiled_original(module)
    found: nn.Module | None = None
    seen: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = _first_argument(frame)
        if isinstance(owner, nn.Module) and id(owner) not in seen:
            seen.add(id(owner))
            around = compiled_original(owner) is not original and any(part is original for part in owner.modules())
            if around and is_network(owner):
                found = owner
        frame = frame.f_back
    return found


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    if code.co_argcount == 0 or code.co_varnames[0] != "self":
        return None
    values = frame.f_locals
    owner = values.get("self")
    # Three references: the frame's, `values`, and `getrefcount`'s argument. If more, the program itself keeps its locals.
    if _SNAPSHOTS and sys.getrefcount(values) == 3:
        values.clear()
    return owner


# Installs hooks for modules, optimizers, backward and gradient scalers, and removes them without a trace.
#
# Modules are watched by replacing `nn.Module.__call__`, not by global module hooks: these make every module take the slow
# path through `_call_impl`, miss exceptions that are not an `Exception`, and make `torch.compile(module)` warn at every call.
#
# Optimizers are watched by the global hooks of `torch.optim`, not by replacing `step`: a learning-rate scheduler created
# earlier keeps the original `step`. The hooks miss only a step that fails, which the observer detects separately.


@dataclass(frozen=True, slots=True)
class Watch:
    """The functions to call. `backward` and `scaler_update` receive the original function first and must call it.
    `wrap_call` receives `nn.Module.__call__` and returns its replacement. `remember` receives, when a checkpoint is made,
    the function that backward will run again, and returns its replacement.

    `optimizer_begins` receives the optimizer and its closure or None, and may return another closure. A hook calls both
    optimizer functions, and the frame that runs `step` calls the hook.
    """

    wrap_call: Callable[[Callable[..., Any], list[bool]], Callable[..., Any]]
    optimizer_begins: Callable[[Optimizer, object], Callable[..., Any] | None]
    optimizer_ends: Callable[[Optimizer], None]
    backward: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
    scaler_update: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
    remember: Callable[[Callable[..., Any], list[bool]], Callable[..., Any]]


def install(watch: Watch, loading: Loading, own: Callable[[Callable[[], None]], None]) -> None:
    """Start to call the functions of `watch`; those for checkpoints once `torch.utils.checkpoint` is loaded.

    `own` receives the undo function before anything is installed: Ctrl-C may come anywhere, and undoing works at any point.
    Undoing sets `alive[0]` to False: a replacement that other code has wrapped cannot be removed, and then only calls the
    original.
    """
    replaced = Replacements()
    hooks: list[Any] = []
    alive = [True]

    def undo() -> None:
        alive[0] = False
        loading.forget()
        replaced.restore()
        while hooks:
            hooks.pop().remove()

    own(undo)
    load_profiler()
    call = nn.Module.__call__
    replaced.replace(nn.Module, "__call__", watch.wrap_call(call, alive))
    _watch_backward(watch, alive, replaced)
    loading.when_there("torch.utils.checkpoint", functools.partial(_watch_checkpoints, watch, alive, replaced))
    for scaler in _classes_with_update(grad_scaler.GradScaler):
        _watch_scaler(watch, alive, replaced, scaler)
    before, after = _optimizer_hooks(watch)
    hooks.append(register_optimizer_step_pre_hook(before))
    hooks.append(register_optimizer_step_post_hook(after))


def _watch_backward(watch: Watch, alive: list[bool], replaced: Replacements) -> None:
    # `backward` and `grad` may already have been imported by name; both look up this function when they run.
    original = run_backward()
    if original is None:
        return

    def run_and_notify(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not alive[0]:
            return original(*args, **kwargs)
        return watch.backward(original, args, kwargs)

    replaced.replace(torch.autograd, RUN_BACKWARD, run_and_notify)


def _watch_checkpoints(watch: Watch, alive: list[bool], replaced: Replacements) -> None:
    from torch.utils import checkpoint  # already loaded; its import is slow in old releases

    # Not the function `checkpoint` itself: it may have been imported by name, and compilers compare its identity.
    kept = checkpoint_generator()
    apply: Callable[..., Any] = checkpoint.CheckpointFunction.apply

    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return kept(watch.remember(function, alive) if alive[0] else function, *args, **kwargs)

    def apply_function(function: Callable[..., Any], *args: Any) -> Any:
        return apply(watch.remember(function, alive) if alive[0] else function, *args)

    if kept is not None:
        replaced.replace(checkpoint, kept.__name__, generator)
    replaced.replace(checkpoint.CheckpointFunction, "apply", staticmethod(apply_function))


def _watch_scaler(watch: Watch, alive: list[bool], replaced: Replacements, scaler: type) -> None:
    original = scaler.__dict__["update"]

    def update(scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not alive[0]:
            return original(scaler, *args, **kwargs)
        return watch.scaler_update(original, (scaler, *args), kwargs)

    replaced.replace(scaler, "update", update)


def _classes_with_update(scaler: type) -> list[type]:
    """The class and its subclasses that define their own `update`."""
    classes, pending = [], [scaler]
    while pending:
        found = pending.pop()
        pending.extend(found.__subclasses__())
        if "update" in found.__dict__ and found not in classes:
            classes.append(found)
    return classes


def _optimizer_hooks(watch: Watch) -> tuple[Callable[..., Any], Callable[..., None]]:
    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return None
        # `args` starts with the optimizer itself.
        closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
        replacement = watch.optimizer_begins(optimizer, closure)
        if replacement is None:
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": replacement}
        return (args[0], replacement, *args[2:]), kwargs

    def after(optimizer: Optimizer, *_: object) -> None:
        if not torch.compiler.is_compiling():
            watch.optimizer_ends(optimizer)

    return before, after


# Observes the program.

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
        outside, get_frame = self._call_outside, sys._getframe
        plain = original
        if self._around is not None:
            original = self._around(original)

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
            position.scope = inner
            if follows:
                position.enclosing = Enclosing(module, root, enclosing)
            position.running = running
            try:
                return original(module, *args, **kwargs)
            finally:
                position.scope, position.enclosing, position.running = scope, enclosing, around

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
