"""Records the program's calls of PyTorch functions and library modules, each as one operator.

    x + 1, torch.relu(x), functional.cross_entropy(x, y)    a function, in a scope: Default/network-Net/relu-call0
    self.fc(x), nn.TransformerEncoderLayer(...)(x)          a module whose code is PyTorch's: Default/network-Net/fc-Linear

The inputs of a module are the arguments of the call, its parameters and its buffers, as a device operator takes its weight and bias.

A PyTorch function mode intercepts the calls. Calls made inside a recorded call are not recorded; calls inside the program's own modules
and containers are. While a function mode is on, some library modules take other code paths and `torch.compile` compiles other code.
So the mode is off inside both, and the results are the same as without it.

The program calls no gradients, so they are not recorded. Neither are calls inside functions passed to `torch.compile`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.dispatch import CaptureMode
from opdump.adapters.torch.failures import records_failures, was_recorded
from opdump.adapters.torch.isolation import hidden_from_torch_modes, never_compile
from opdump.adapters.torch.mode_stack import Loading, recording_here
from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import (
    CALLS,
    SET_EVALUATION,
    children_of,
    function_depth,
    has_hooks,
    module_of_evaluation,
    pop_function_mode,
    push_function_mode,
    set_evaluation,
    shard_of,
    without_modes,
    wrappers_of_compiled,
)
from opdump.adapters.torch.schemas import nested_tensors
from opdump.graph import PARAMETER_PREFIX
from opdump.recorder import LiveTensor, Recorder, isolated_from_program
from opdump.records import OpRecord

_NO_OPERATORS = frozenset(
    {
        *("__get__", "__set__", "__len__", "__iter__", "__array__", "__repr__", "__format__", "__hash__"),
        *("__contains__", "__bool__", "__int__", "__float__", "__index__", "__deepcopy__", "__reduce_ex__", "__dir__"),
        *("__setstate__", "numpy", "tolist", "item", "data_ptr", "untyped_storage", "storage", "size", "dim", "stride"),
        *("numel", "element_size", "backward", "grad", "register_hook", "register_post_accumulate_grad_hook"),
        *("requires_grad_", "retain_grad", "is_complex", "is_floating_point", "is_contiguous", "get_device"),
        *("share_memory_", "_set_grad_enabled"),
    }
)
"""Functions that compute nothing, or only run operators that are recorded elsewhere."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.DataParallel, nn.parallel.DistributedDataParallel)
_ASK_FOR_MODES = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""Modules that take another code path while any function mode is on. The same applies to subclasses in the program."""
# Modules of these packages wrap modules of the program, so their calls are not single operators.
_WRAPPERS = ("torch._dynamo.", "torch.fx.", "torch.jit.", "torch.distributed.", "torch.nn.parallel.", "torch.ao.")


class CallMode(TorchFunctionMode):
    """Intercepts calls in the threads that it is on in. With `records`, each call is an operator; otherwise only failing calls are."""

    def __init__(self, mode: CaptureMode, recorder: Recorder, *, records: bool) -> None:
        super().__init__()
        self._mode = mode
        self._recorder = recorder
        self._records = records
        self._away = threading.local()
        self._replacements = Replacements()
        self._loading = Loading(recorder.stopped)

    def attach(self) -> None:
        """Switch on in the calling thread, except inside compiled code, until `detach`."""
        self._loading.when_there("torch._dynamo", self._attach_to_compiler)
        if not is_lost(CALLS):  # otherwise it could not be switched off inside compiled code
            push_function_mode(self)

    def _attach_to_compiler(self) -> None:
        original, wrappers = set_evaluation(), wrappers_of_compiled()
        if is_lost(CALLS):
            take_off(self)
            return

        def switching(callback: Any) -> Any:
            # The wrapper of a compiled function calls this twice: with a compiler on entry, and with the previous callback on exit.
            # Other callers use it around code that must not be compiled.
            if sys._getframe(1).f_code not in wrappers:
                return original(callback)
            if callable(callback):
                self._leave_for_compiled()
                return original(callback)
            previous = original(callback)
            self._return_from_compiled()
            return previous

        self._replacements.replace(module_of_evaluation(), SET_EVALUATION, switching)
        never_compile(switching.__code__)

    def detach(self) -> None:
        self._loading.forget()
        self._replacements.restore()
        take_off(self)

    @contextmanager
    def on(self) -> Iterator[None]:
        if is_lost(CALLS):
            yield
            return
        push_function_mode(self)
        try:
            yield
        finally:
            take_off(self)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `nn.Module.__call__`, which runs inside the scope of the module."""

        def module_call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            records = self._mode.recording and recording_here()
            one = records and self._records and _is_of_library(module)
            if not (one or isinstance(module, _ASK_FOR_MODES)):
                return call(module, *args, **kwargs)
            place = take_off(self)
            if place is None:
                return call(module, *args, **kwargs)
            try:
                if not records:
                    return call(module, *args, **kwargs)
                return self._run(
                    type(module).__name__,
                    self._mode.naming.scope(),
                    lambda: call(module, *args, **kwargs),
                    args,
                    kwargs,
                    module,
                )
            finally:
                _put_back(self, place)

        return module_call

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _NO_OPERATORS or not self._mode.recording or not recording_here():
            return func(*args, **kwargs)
        return self._run(name.strip("_") or name, "", lambda: func(*args, **kwargs), args, kwargs)

    @records_failures
    def _run(
        self,
        name: str,
        op_name: str,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        module: nn.Module | None = None,
    ) -> Any:
        try:
            return self._recorded(name, op_name, call, args, kwargs, module) if self._records else call()
        except Exception as error:
            if self._mode.failures is not None and not was_recorded(error):
                self._mode.failures.record(name, args, kwargs, error)
            raise

    def _recorded(
        self,
        op_type: str,
        op_name: str,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        module: nn.Module | None,
    ) -> Any:
        mode, recorder = self._mode, self._recorder
        if mode.graphs.is_recording():
            return call()  # its operators are counted as part of the graph
        op = self._opened(op_type, op_name, args, kwargs, module)
        if op is None:
            return call()
        launched = getattr(mode.launched, "count", 0)
        try:
            result = call()
        except BaseException as error:
            with without_modes(), hidden_from_torch_modes():
                if isinstance(error, Exception):
                    recorder.failed_op(op, error, ())
                else:
                    recorder.abandoned_op(op)
            raise
        # A call that writes into its first argument may return None: x[0] = y.
        returned = (args[:1] if result is None else (result,)) if args else (result,)
        self._returned(op, launched, returned)
        return result

    @isolated_from_program
    def _opened(
        self,
        op_type: str,
        op_name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        module: nn.Module | None,
    ) -> OpRecord:
        with without_modes(), hidden_from_torch_modes():
            op = self._mode.naming.name_call(op_type, op_name, args, kwargs)
            if not op.skip:
                held = () if module is None else (*module.named_parameters(), *module.named_buffers())
                found = (*nested_tensors(args, ""), *nested_tensors(kwargs, ""), *held)
                self._recorder.before_op(op, self._lives(op, found, "input", len(found) - len(held)))
        return op

    @isolated_from_program
    def _returned(self, op: OpRecord, launched: int, returned: tuple[Any, ...]) -> None:
        with without_modes(), hidden_from_torch_modes():
            if op.skip or getattr(self._mode.launched, "count", 0) == launched:
                self._recorder.abandoned_op(op)  # the call ran no kernel
            else:
                self._recorder.after_op(op, self._lives(op, tuple(nested_tensors(returned, "")), "output"))

    def _lives(
        self, op: OpRecord, found: tuple[tuple[str, Any], ...], io: Any, given: int | None = None
    ) -> list[LiveTensor]:
        """The tensors of a call. Those after the first `given` are parameters and buffers of the module, with their names as sources."""
        lives: list[LiveTensor] = []
        for slot, (path, tensor) in enumerate(found):
            shard = shard_of(tensor)
            is_held = given is not None and slot >= given
            source = self._mode.provenance.source(shard) or f"{PARAMETER_PREFIX}{path}" if is_held else ""
            lives.append((slot, path, shard, source, ""))
        models = self._mode.models
        return lives if models is None else list(models.without_excluded(op, io, lives))

    def _leave_for_compiled(self) -> None:
        place = take_off(self)
        if place is not None:
            self._away.place = place

    def _return_from_compiled(self) -> None:
        place = getattr(self._away, "place", None)
        if place is not None:
            self._away.place = None
            _put_back(self, place)


def take_off(mode: TorchFunctionMode) -> int | None:
    """Switch `mode` off in the calling thread, and return its position on the stack, from the bottom; None if it is not on."""
    above = _modes_above(0)
    place = next((place for place, other in enumerate(above) if other is mode), None)
    for other in above:
        if other is not mode:
            push_function_mode(other)
    return place


def _put_back(mode: TorchFunctionMode, place: int) -> None:
    """Switch `mode` on at its old position: the program expects its own modes on top when it exits them."""
    above = _modes_above(place)
    push_function_mode(mode)
    for other in above:
        push_function_mode(other)


def _modes_above(place: int) -> list[TorchFunctionMode]:
    """Switch off the modes of the calling thread from `place` upward, and return them, lowest first."""
    count = function_depth() - place
    return [pop_function_mode() for _ in range(count)][::-1]


def _is_of_library(module: nn.Module) -> bool:
    """Whether a module runs only PyTorch's own code."""
    if isinstance(module, _CONTAINERS) or not _is_plain(module):
        return False
    return all(_is_plain(part) for part in module.modules()) if children_of(module) else True


def _is_plain(module: nn.Module) -> bool:
    home = getattr(getattr(type(module), "forward", None), "__module__", "") or ""
    return (
        home.startswith("torch.")
        and not home.startswith(_WRAPPERS)
        and "forward" not in vars(module)
        and not has_hooks(module)
    )


for _method in (CallMode.__torch_function__, CallMode._run, CallMode._recorded):
    never_compile(_method.__code__)
