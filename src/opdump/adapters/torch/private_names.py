"""Every private name of PyTorch that the adapter uses, the ability that depends on it, and its substitute.

    graph_task = resolve("torch._C._current_graph_task_id", of=BACKWARD, instead=constant(-1))

A row lists the name of the newest release first, then older ones; the first that exists is used. If none exists, `instead`
is used and the ability is lost: the program runs unchanged, and the report states the missing name and what that costs
(`reasons`). If `by` describes a substitute, nothing is lost. docs/torch-versions.md has the table by release.

No other file of the adapter uses a private name of PyTorch (tests/torch/test_private_names.py).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from opdump.adapters.torch.names_by_release import (
    ABSENT,
    Ability,
    PrivateName,
    constant,
    first,
    lazy,
    look_up,
    resolve,
    row,
)

OPERATORS = Ability("operators", "no operator is recorded, because recording could change the program's numbers")
BACKWARD = Ability("backward", "operators of a backward are recorded as part of the forward")
LINKS = Ability("links", "gradients are recorded without their forward operators")
SOURCES = Ability("sources", "records lack the makers of inputs and the memory locations of tensors")
CALLS = Ability("calls", "calls of the program (dump_level op), and errors above operators, are not recorded")
STEPS = Ability("steps", "no iteration ends with a backward, only with an optimizer or a network")
RECOMPUTATION = Ability("recomputation", "operators that a checkpoint runs again have no scope")
COMPILED = Ability("compiled", "in compiled regions, only operators that run individually are recorded")
FRAMES = Ability("frames", "in programs that compile functions, recording an operator takes longer")
TRACING = Ability("tracing", "operators that run only to be traced or exported are recorded like the program's own")
WRITES = Ability("writes", "tensors that a compiled region writes into are not recorded as its results")
DEVICES = Ability("devices", "modes of the program are active while a device computes statistics")
RPC = Ability("rpc", "functions that RPC runs for other processes are not recorded, or their rank is unknown")

# The stack of dispatch modes, and what keeps operators exact that a mode would change

dispatch_depth: Callable[[], int] = resolve("torch._C._len_torch_dispatch_stack", of=OPERATORS, instead=constant(0))
dispatch_mode_at = resolve("torch._C._get_dispatch_stack_at", of=OPERATORS)
push_dispatch_mode = resolve("torch._C._push_on_torch_dispatch_stack", of=OPERATORS)
pop_dispatch_mode = resolve("torch._C._pop_torch_dispatch_stack", of=OPERATORS)


class _NoMode:
    """Stands in for PyTorch's class of dispatch modes if that is missing; never pushed."""


@contextmanager
def _taken_off() -> Iterator[None]:
    modes = [pop_dispatch_mode(None) for _ in range(dispatch_depth())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            push_dispatch_mode(mode)


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # noqa: PLC0414  for mypy
    from torch.utils._python_dispatch import _disable_current_modes as _modes_disabled
else:
    TorchDispatchMode = resolve("torch.utils._python_dispatch.TorchDispatchMode", of=OPERATORS, instead=_NoMode)
    _modes_disabled = resolve(
        "torch.utils._python_dispatch._disable_current_modes",
        of=OPERATORS,
        instead=_taken_off,
        by="the modes are popped one by one",
    )

_tracing_depth: Callable[[], int] = resolve(
    "torch._ops._len_torch_dispatch_stack_pre_dispatch",
    of=OPERATORS,
    instead=constant(1),
    by="PyTorch is asked each time",
)
"""The number of modes that trace before dispatch. Only PyTorch's `_modes_disabled` can remove these; in old releases it
imports sympy (440 modules), so it is called only if there are any."""


def without_modes() -> AbstractContextManager[Any]:
    """A context in which no dispatch mode of the program is active."""
    return _modes_disabled() if _tracing_depth() else _taken_off()


KEY_OF_MODES = resolve("torch._C.DispatchKey.Python", of=OPERATORS)
KEY_OF_THREADS_WITH_MODES = resolve("torch._C.DispatchKey.PythonTLSSnapshot", of=OPERATORS)
DispatchKeySet = resolve("torch._C.DispatchKeySet", of=OPERATORS)
all_operators: Callable[[], list[str]] = resolve("torch._C._dispatch_get_all_op_names", of=OPERATORS, instead=list)
_has_kernel = resolve("torch._C._dispatch_has_kernel_for_dispatch_key", of=OPERATORS, instead=constant(value=False))
KEY_OF_COUNTS = "ADInplaceOrView"
"""The key whose kernels count writes to tensors, after the operator has run."""
is_key_excluded = resolve("torch._C._dispatch_tls_is_dispatch_key_excluded", of=OPERATORS)
exclude_key = resolve("torch._C._dispatch_tls_set_dispatch_key_excluded", of=OPERATORS)
is_key_included = resolve("torch._C._dispatch_tls_is_dispatch_key_included", of=OPERATORS)
include_key = resolve("torch._C._dispatch_tls_set_dispatch_key_included", of=OPERATORS)
inference_guard = resolve("torch._C._InferenceMode", of=OPERATORS)
"""The guard that `torch.inference_mode` holds while it is active."""
fallthrough_kernel = resolve("torch.library.fallthrough_kernel", of=OPERATORS)
destroy_library = resolve("torch.library.Library._destroy", of=OPERATORS)
_base = resolve("torch.Tensor._base", of=OPERATORS)


def has_kernel(operator: str, key: str) -> bool:
    """Whether an operator (`aten::add.Tensor`) has a kernel at a dispatch key.

    False if the operator no longer exists: its library may be destroyed at any time.
    """
    try:
        return bool(_has_kernel(operator, key))
    except RuntimeError:
        if operator in all_operators():
            raise
        return False


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that `tensor` is a view of; None if it is not a view."""
    base: torch.Tensor | None = _base.__get__(tensor)
    return base


def _is_subclass_like(tensor: torch.Tensor) -> bool:
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta or is_functorch(tensor)


is_subclass_like: Callable[[torch.Tensor], bool] = resolve(
    "torch._C._dispatch_isTensorSubclassLike", of=OPERATORS, instead=_is_subclass_like, by="class, device and functorch"
)
_get_schema = resolve("torch._C._get_schema", of=OPERATORS, by="the schema of torch.ops")


def named_schema(packet: str, overload: str) -> Any:
    """The schema of an operator by its name: `aten::add`, `Tensor`."""
    if _get_schema is not None:
        return _get_schema(packet, overload)
    namespace, _, name = packet.partition("::")
    found = getattr(getattr(torch.ops, namespace), name)
    return operator_schema(getattr(found, overload or "default"))


def operator_schema(operator: Any) -> Any:
    """The schema of an operator of `torch.ops`; None for a higher-order operator, which runs functions."""
    return getattr(operator, "_schema", None)


def is_own_mode(mode: Any) -> bool:
    """Whether a dispatch mode is PyTorch's own (fake tensors, tracing)."""
    return getattr(mode, "_mode_key", None) is not None


def dual_level() -> int:
    """The nesting level of forward-mode AD, -1 outside. If unknown, 0 as if it were on, which changes no number."""
    from torch.autograd import forward_ad

    return int(getattr(forward_ad, "_current_level", 0))


_FORWARD_AD = row(
    "torch.autograd.forward_ad._current_level", of=OPERATORS, by="operators with a tangent always run outside the mode"
)

saved_tensor_hooks = resolve(
    "torch._C._autograd._top_saved_tensors_default_hooks",
    of=OPERATORS,
    instead=constant(value=True),
    by="the saved tensors of a gradient that runs outside the mode are left out of its inputs",
)
SAVED = "_saved_"
"""The prefix of the attributes of an autograd node that contain its saved tensors."""

GUARDS_SEE_MODES = look_up("torch._C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals") is ABSENT
"""Whether guards of compiled functions fail while a mode is on, as up to PyTorch 2.9. That release already has
`ignore_compile_internals`, but calls it only when compiling."""

# Higher-order operators: before PyTorch 2.9 the mode is not asked; each operator has a table of the modes that it supports.

mode_tables = resolve("torch._ops._higher_order_ops", of=OPERATORS, instead={}, by="modes that declare to support them")


def let_higher_order_in(mode: type, handler: Callable[..., Any]) -> None:
    """Register `handler` for `mode` with all higher-order operators, in releases that do not ask the mode."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for operator in list(mode_tables.values()):
        table = getattr(operator, "python_key_table", None)
        if table is not None and mode not in table:
            table[mode] = functools.partial(_handed_over, handler, operator)


def _handed_over(handler: Callable[..., Any], operator: Any, mode: Any, /, *args: Any, **kwargs: Any) -> Any:
    return handler(mode, operator, (), args, kwargs)


# Autograd

graph_task: Callable[[], int] = resolve("torch._C._current_graph_task_id", of=BACKWARD, instead=constant(-1))
autograd_node: Callable[[], Any] = resolve("torch._C._current_autograd_node", of=LINKS, instead=constant(None))
sequence_number: Callable[[], int] = resolve("torch._C._autograd._get_sequence_nr", of=LINKS, instead=constant(-1))
_node_number = resolve("torch._C._functions.AccumulateGrad._sequence_nr", of=LINKS)


def number_of(node: Any) -> int:
    """The sequence number of an autograd node; -2, which no node has, if the release does not expose it."""
    return -2 if _node_number is None else int(node._sequence_nr())


RUN_BACKWARD = "_engine_run_backward"
run_backward = lazy(f"torch.autograd.{RUN_BACKWARD}", of=STEPS)
CHECKPOINTS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)  # the second one before PyTorch 2.14
checkpoint_generator = lazy(*(f"torch.utils.checkpoint.{name}" for name in CHECKPOINTS), of=RECOMPUTATION)

# Tensors and their memory

_version = resolve("torch.Tensor._version", of=WRITES)


def version_of(value: Any) -> int:
    """The number of writes to a tensor; -1 if unknown: for tensors made in inference mode, and for other objects."""
    with no_function_modes():
        is_counted = _version is not None and isinstance(value, torch.Tensor) and not value.is_inference()
        return int(value._version) if is_counted else -1


count_of_writes: Callable[[torch.Tensor], int] = constant(0) if _version is None else attrgetter("_version")
"""The same without checks, for frequent calls; 0 if unknown. RuntimeError for tensors made in inference mode."""

_memory = resolve("torch.UntypedStorage._cdata", of=SOURCES)
_weak_memory = resolve("torch.UntypedStorage._weak_ref", of=SOURCES)
release_memory = resolve("torch.UntypedStorage._free_weak_ref", of=SOURCES)


has_ended: Callable[[Any], bool] = resolve("torch.UntypedStorage._expired", of=SOURCES)
"""Whether a storage held by `hold_weakly` is no longer in use."""


identity_of: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Identifies a storage among all live ones."""


def hold_weakly(storage: torch.UntypedStorage) -> Any:
    """Reserve the identity of a storage until `release_memory`, so that no other storage gets it."""
    return storage._weak_ref()


negated_view: Callable[[torch.Tensor], torch.Tensor] = resolve(
    "torch._neg_view", of=DEVICES, instead=torch.neg, by="a computed negative"
)
"""The negative of a tensor as a view of its memory."""
is_functorch: Callable[[torch.Tensor], bool] = resolve(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    of=DEVICES,
    instead=constant(value=False),
    by="a check for the address, which such a tensor lacks",
)

# Modes of the program

no_function_modes: Callable[[], AbstractContextManager[Any]] = resolve(
    "torch._C.DisableTorchFunction", of=CALLS, instead=torch._C.DisableTorchFunctionSubclass
)
no_subclass_functions: Callable[[], AbstractContextManager[Any]] = resolve(
    "torch._C.DisableTorchFunctionSubclass", of=CALLS, instead=no_function_modes, by="no mode sees it either"
)
function_depth: Callable[[], int] = resolve("torch._C._len_torch_function_stack", of=CALLS, instead=constant(0))
push_function_mode = resolve("torch._C._push_on_torch_function_stack", of=CALLS)
pop_function_mode = resolve("torch._C._pop_torch_function_stack", of=CALLS)

_DispatchKey = resolve("torch._C.DispatchKey", of=OPERATORS)
_key_guard = resolve("torch._C._ExcludeDispatchKeyGuard", of=DEVICES)
_transforms = resolve("torch._C._functorch.peek_interpreter_stack", of=DEVICES)
_no_transforms = resolve("torch._C._DisableFuncTorch", of=DEVICES)


def without_keys(prefixes: tuple[str, ...], *names: str) -> Callable[[], AbstractContextManager[Any]]:
    """A function that makes contexts in which no kernels run for the dispatch keys with these names or prefixes."""
    if _key_guard is None or _DispatchKey is None or DispatchKeySet is None:
        return torch.no_grad
    members: Mapping[str, Any] = _DispatchKey.__members__
    keys = DispatchKeySet(members[names[0]])
    for name, key in members.items():
        if name in names or name.startswith(prefixes):
            keys = keys | DispatchKeySet(key)
    return functools.partial(_key_guard, keys)


def without_transforms() -> AbstractContextManager[Any]:
    """A context in which `vmap` and the other functional transforms are not active."""
    if _transforms is None or _no_transforms is None or _transforms() is None:
        return nullcontext()
    found: AbstractContextManager[Any] = _no_transforms()
    return found


tracing_context: Callable[[], Any] = resolve("torch._guards.TracingContext.try_get", of=TRACING, instead=constant(None))


class LateName(NamedTuple):
    """A row for a function of a module that the program may not have loaded yet."""

    module: str
    name: PrivateName

    def owner(self) -> tuple[Any, str] | None:
        """The object that has the function, and its name there; None if this release lacks it. Imports the module."""
        if first(self.name, None) is None:
            return None
        owner, _, name = self.name.paths[0].rpartition(".")
        return look_up(owner), name


def _late(module: str, *names: str, by: str = "") -> list[LateName]:
    return [LateName(module, row(f"{module}.{name}", of=TRACING, by=by)) for name in names]


_STAGE = "PipelineStage"
TRACERS = (
    *_late(
        "torch.jit._trace", "_trace_impl", "trace_module", "_get_trace_graph"
    ),  # the first is all of torch.jit.trace
    *_late("torch.jit", "trace_module", "_get_trace_graph"),
    *_late("torch.export._trace", "_export"),
    *_late("torch.export._trace", "_export_for_training", by="_export"),
    *_late("torch.export.exported_program", "_decompose_exported_program"),
    *_late("torch.fx.experimental.proxy_tensor", "_MakefxTracer.trace"),
    *_late("torch.fx._symbolic_trace", "Tracer.trace"),
    *_late("torch.onnx", "export"),
    # A pass over a pipeline stage with empty buffers that infers shapes; one or two functions, depending on the release.
    *_late("torch.distributed.pipelining.stage", f"{_STAGE}._forward_metadata_inference", by="_shape_inference"),
    *_late("torch.distributed.pipelining.stage", f"{_STAGE}._backward_metadata_inference", by="_shape_inference"),
    *_late("torch.distributed.pipelining.stage", f"{_STAGE}._shape_inference", by="_forward_metadata_inference"),
)
"""The functions that trace or export; the public functions look them up on each call."""
EXPORTERS = tuple(_late("torch._dynamo", "export", "eval_frame.export"))
"""The same for the export of dynamo, which returns a function that exports."""


# Modules and collectives

WRAPPED = "_orig_mod"
"""The attribute in which a module made by `torch.compile` keeps the original."""
WRAPPED_BY_OTHERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
REPLICA = "_is_replica"
"""The attribute by which `DataParallel` marks its copies of a module."""


def children_of(module: torch.nn.Module) -> Mapping[str, Any]:
    """The children of a module by name, some of them None. The module may change the dict during iteration."""
    return module._modules


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks of the program run before or after the forward of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def shard_of(tensor: Any) -> Any:
    """The part of a `DTensor` that this process has, which its operators see; any other tensor as given."""
    kind = type(tensor)
    if kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed."):
        shard = getattr(tensor, "_local_tensor", None)
        if type(shard) is torch.Tensor:  # not a subclass for a result that a collective is still writing
            return shard
    return tensor


# Compiled code

cleanup_hook = lazy("torch._dynamo.utils.CleanupHook", of=COMPILED)
cleanup_manager = lazy("torch._dynamo.utils.CleanupManager", of=COMPILED)
compiled_inputs = lazy(
    "torch._dynamo.convert_frame.input_codes", of=COMPILED, by="gradients are called compiled_backward"
)
cache_entries = lazy(
    "torch._dynamo.eval_frame._debug_get_cache_entry_list", of=COMPILED, by="gradients are called compiled_backward"
)
library_wrappers = lazy("torch._dynamo.external_utils", of=COMPILED, by="they appear under their own names")
backward_compiler = lazy(
    "torch._functorch._aot_autograd.runtime_wrappers._AutogradBackwardCompiler", of=COMPILED, by="calls at run time"
)
CALL_AT_RUN_TIME = "call_func_at_runtime_with_args"
run_time_wrappers = lazy("torch._functorch._aot_autograd.runtime_wrappers", of=COMPILED)
stance = lazy(
    "torch._dynamo.eval_frame._stance", of=COMPILED, by="the previous stance is restored, whatever the program chose"
)
SET_EVALUATION = "_maybe_set_eval_frame"
set_evaluation = lazy(f"torch._dynamo.eval_frame.{SET_EVALUATION}", of=CALLS)
_compiler = lazy("torch._dynamo.eval_frame._TorchDynamoContext.__call__", of=CALLS)
_WRAPPERS_OF_COMPILED = ("compile_wrapper", "_fn")  # the second one before PyTorch 2.8
BOXED = "_boxed_call"
"""The attribute of a callable that takes its arguments as one list and empties it."""

_SKIP = "torch._C._dynamo.eval_frame.skip_code"  # before PyTorch 2.7
_frame_rule = resolve("torch._C._dynamo.eval_frame.set_code_exec_strategy", _SKIP, of=OPERATORS)
_frame_action = resolve("torch._C._dynamo.eval_frame._FrameAction", _SKIP, of=OPERATORS)
_frame_strategy = resolve("torch._C._dynamo.eval_frame._FrameExecStrategy", _SKIP, of=OPERATORS)

is_autograd_compiled = lazy(
    "torch._dynamo.compiled_autograd.compiled_autograd_enabled",
    "torch._dynamo.compiled_autograd.in_compiled_autograd_region",
    of=COMPILED,
    instead=False,
    by="a backward that is not compiled",
)
evaluate_frames_by = resolve("torch._C._dynamo.eval_frame.set_eval_frame", of=FRAMES)


def never_compiled(code: CodeType, *, everything_below: bool) -> None:
    """Let frames of `code` run as plain Python, and with `everything_below` what they call.

    Releases before 2.7 can exempt only the frames themselves.
    """
    if None in (_frame_rule, _frame_action, _frame_strategy):
        return
    if _frame_action is _frame_rule:
        _frame_rule(code)
        return
    skip, default = _frame_action.SKIP, _frame_action.DEFAULT
    _frame_rule(code, _frame_strategy(skip, skip if everything_below else default))


def load_profiler() -> None:
    """Import in advance what PyTorch's profiler imports while it records stacks.

    It keeps the addresses of names that are freed after that import.
    """
    with suppress(ImportError):  # a release that lacks it imports nothing there
        importlib.import_module("torch.profiler._cupti_monitor")


def module_of_evaluation() -> Any:
    """The module that looks up `SET_EVALUATION` by name on each use."""
    return look_up("torch._dynamo.eval_frame")


def wrappers_of_compiled() -> frozenset[CodeType]:
    """The code of the wrappers that `torch.compile` returns in place of functions."""
    code = getattr(_compiler(), "__code__", None)
    inner = () if code is None else code.co_consts
    return frozenset(each for each in inner if isinstance(each, CodeType) and each.co_name in _WRAPPERS_OF_COMPILED)


def original_of(function: Any) -> Any:
    """The function that a compiler's wrapper replaces; `function` itself if it is not a wrapper."""
    return getattr(function, "_torchdynamo_orig_callable", function)


# RPC

rpc_pickler = lazy("torch.distributed.rpc.internal._internal_rpc_pickler", of=RPC)
run_rpc_function = lazy("torch.distributed.rpc.internal._run_function", of=RPC)
rpc_agent = lazy("torch._C._distributed_rpc._get_current_rpc_agent", of=RPC)
has_rpc_agent = lazy("torch._C._distributed_rpc._is_current_rpc_agent_set", of=RPC)
_RPC_INVOCATIONS = tuple(
    row(f"torch.distributed.rpc.api._invoke_{how}_{what}", of=RPC)
    for how in ("rpc", "remote")
    for what in ("builtin", "torchscript", "python_udf")
)


def rpc_invocations() -> Iterator[tuple[str, Any]]:
    """The names and functions that ask another process to run something."""
    for each in _RPC_INVOCATIONS:
        found = first(each, None)
        if found is not None:
            yield each.paths[0].rpartition(".")[2], found
