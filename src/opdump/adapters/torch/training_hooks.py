"""Installs hooks for modules, optimizers, backward and gradient scalers, and removes them without a trace.

Modules are watched by replacing `nn.Module.__call__`, not by global module hooks: these make every module take the slow
path through `_call_impl`, miss exceptions that are not an `Exception`, and make `torch.compile(module)` warn at every call.

Optimizers are watched by the global hooks of `torch.optim`, not by replacing `step`: a learning-rate scheduler created
earlier keeps the original `step`. The hooks miss only a step that fails, which the observer detects separately.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp import grad_scaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.loading import Loading
from opdump.adapters.torch.private_names import RUN_BACKWARD, checkpoint_generator, load_profiler, run_backward


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
