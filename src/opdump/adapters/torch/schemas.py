"""Reads the schema of an operator: its kind, and the tensors among arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import torch

from opdump.adapters.torch.private_names import KEY_OF_COUNTS, has_kernel, operator_schema
from opdump.records import SkipReason

# Classifies operators: whether they launch a kernel, what they write, what they are called.
#
#     aten.view.default           view        the same memory, seen differently
#     aten.empty_like.default     allocation  memory without values
#     aten.is_same_size.default   metadata    only shapes and strides
#     aten.add_.Tensor            ""          launches a kernel; writes `self`; ("add_", "aten::add_.Tensor")
#
# Most of this is in the operator's schema: a view returns aliases of its inputs and does not write them. The tables below
# add what schemas leave out. They name operators of PyTorch 2.4 to 2.13; a name that a release lacks does no harm.

_NATIVE_NAMESPACES = frozenset({"aten", "prims"})

_ALLOCATIONS = frozenset(
    {
        *("_efficientzerotensor", "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty"),
        *("empty_like", "empty_permuted", "empty_quantized", "empty_strided", "new_empty", "new_empty_strided"),
    }
)

# They return views, although their schemas do not declare it.
_UNDECLARED_VIEWS = frozenset({"_unsafe_view", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"})

# They return their input if nothing has to be done, else a copy. In training PyTorch decomposes them before dispatch; in
# inference mode it dispatches them whole.
_MAY_COPY = frozenset(
    {
        *("_autocast_to_full_precision", "_autocast_to_reduced_precision", "_sparse_broadcast_to", "coalesce"),
        *("contiguous", "flatten", "pin_memory", "ravel", "reshape", "reshape_as", "resolve_conj"),
        *("resolve_neg", "to"),
    }
)

# They read or change shapes, strides, flags and version counters, never values: `resize_` and `set_` keep the content of
# the memory. Operators that read a value (`item`, `equal`, `_assert_async`) launch a kernel and are not metadata.
_METADATA = frozenset(
    {
        *("_assert_scalar", "_assert_tensor_metadata", "_backward", "_coalesced_"),
        *("_debug_has_internal_overlap", "_dimI", "_dimV", "_fused_sdp_choice"),
        *("_has_compatible_shallow_copy_type", "_has_same_storage_numel", "_is_zerotensor"),
        *("_nested_get_jagged_dummy", "_nested_get_ragged_idx", "_nnz", "_print", "_resize_output_"),
        *("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "_version", "cudnn_is_acceptable", "dense_dim", "dim"),
        *("get_device", "is_coalesced", "is_complex", "is_conj", "is_contiguous", "is_distributed"),
        *("is_floating_point", "is_inference", "is_leaf", "is_neg", "is_non_overlapping_and_dense"),
        *("is_pinned", "is_same_size", "is_set_to", "is_signed", "is_strides_like_format", "numel"),
        *("output_nr", "q_per_channel_axis", "q_scale", "q_zero_point", "qscheme", "record_stream"),
        *("requires_grad_", "resize_", "resize_as_", "resize_storage_bytes_", "result_type", "retain_grad"),
        *("retains_grad", "set_", "set_data", "size", "sparse_dim", "storage_offset", "stride"),
        *("sym_is_contiguous", "sym_numel", "sym_size", "sym_storage_offset", "sym_stride"),
    }
)

_RUNNING_STATISTICS = ("running_mean", "running_var")

# Arguments that are written although the schema does not declare it. In evaluation the running statistics keep their
# values; treating them as written then only costs a second read of a few small tensors.
_UNDECLARED_WRITES = {
    "_batch_norm_impl_index": _RUNNING_STATISTICS,
    "batch_norm": _RUNNING_STATISTICS,
    "batch_norm_gather_stats": _RUNNING_STATISTICS,
    "batch_norm_gather_stats_with_counts": _RUNNING_STATISTICS,
    "batch_norm_update_stats": _RUNNING_STATISTICS,
    "cudnn_batch_norm": _RUNNING_STATISTICS,
    "instance_norm": _RUNNING_STATISTICS,
    "miopen_batch_norm": _RUNNING_STATISTICS,
    "native_batch_norm": _RUNNING_STATISTICS,
    "rrelu_with_noise": ("noise",),
    "rrelu_with_noise_": ("noise",),
    # Collectives that return only a handle (`Work`).
    "allgather_coalesced_": ("output_lists",),
    "allgather_into_tensor_coalesced_": ("outputs",),
    "allreduce_coalesced_": ("tensors",),
    "alltoall_base_": ("output",),
    "gather_": ("output_tensors",),
    "recv_": ("tensors",),
    "recv_any_source_": ("tensors",),
    "reduce_": ("tensors",),
    "reduce_scatter_tensor_coalesced_": ("outputs",),
}

# They overwrite all of `self`, or use only its shape.
_TAKES_THE_SHAPE = frozenset(
    {
        *("_fill_mem_eff_dropout_mask_", "_foreach_copy_", "_foreach_zero_", "cauchy", "cauchy_", "copy", "copy_"),
        *("bernoulli_", "exponential", "exponential_", "fill", "fill_", "full_like", "geometric", "geometric_"),
        *("log_normal", "log_normal_", "new_full", "new_ones", "new_zeros", "normal_", "normal_functional"),
        *("ones_like", "rand_like", "randint_like", "randn_like", "random", "random_", "uniform", "uniform_"),
        *("zero", "zero_", "zeros_like"),
    }
)

# `beta * self + alpha * ...`: PyTorch does not read `self` if `beta` is 0.
_SCALES_SELF = frozenset(
    {
        *("addbmm", "addbmm_", "addmm", "addmm_", "addmv", "addmv_", "addr", "addr_", "baddbmm", "baddbmm_"),
        *("_addmm_activation", "sspaddmm"),
    }
)

# Collectives that reduce into the tensors that they write, or send them.
_READS_WHAT_IT_WRITES = frozenset(
    {"all_reduce_", "all_reduce_coalesced_", "allreduce_", "allreduce_coalesced_", "reduce_"}
)

# Collectives return before the data has arrived; until the program waits, the memory of their results is being written.
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
_AFTER_THE_WAIT = frozenset({"wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_"})


def kind_of(op: Any) -> SkipReason:
    """Why an operator launches no kernel; empty if it launches or may launch one."""
    schema = operator_schema(op)
    if schema is None:
        return ""  # a higher-order operator: it runs functions
    namespace, _, name = schema.name.partition("::")
    if not any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)):
        return "metadata"
    if name == "_wrap_tensor_autograd" and namespace == "_c10d_functional":
        return "view"  # of a result that is awaited when it is used
    if namespace not in _NATIVE_NAMESPACES and name != "resize_storage_bytes_":
        return ""  # the schema of a custom operator does not show what it runs
    if name in _ALLOCATIONS:
        return "allocation"
    if name in _METADATA or torch.Tag.inplace_view in op.tags:
        return "metadata"
    if name in _MAY_COPY:
        return ""
    if (name in _UNDECLARED_VIEWS and not _writes(schema)) or _returns_aliases_alone(schema):
        return "view"
    return ""


def writes_of(op: Any) -> tuple[str, ...]:
    """Names of the arguments that an operator writes, in schema order; empty for a higher-order operator.

    A tensor whose shape is changed in place (`squeeze_`) counts as written, although only its metadata changes.
    """
    schema = operator_schema(op)
    if schema is None:
        return ()
    undeclared = _UNDECLARED_WRITES.get(schema.name.partition("::")[2], ())
    return tuple(
        argument.name
        for argument in schema.arguments
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in undeclared
    )


def unread_of(op: Any) -> frozenset[str]:
    """Names of the tensor arguments whose values an operator does not read: it overwrites them or uses only their shapes.

    For an operator that is not PyTorch's own, what it writes is taken as not read.
    """
    schema = operator_schema(op)
    if schema is None:
        return frozenset()
    name = schema.name.partition("::")[2]
    if not is_native(op):
        return frozenset() if name in _READS_WHAT_IT_WRITES else frozenset(writes_of(op))
    found = {
        argument.name
        for argument in schema.arguments
        if argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
    }
    if name in _TAKES_THE_SHAPE:
        found.add("self")
    return frozenset(found | {"noise"} if name.startswith("rrelu_with_noise") else found)


def factor_of_self(op: Any) -> int | None:
    """Position of the factor of `self` (`beta`); if that is 0, `self` is not read. None without one."""
    schema = operator_schema(op)
    if schema is None or schema.name.partition("::")[2] not in _SCALES_SELF:
        return None
    return next((place for place, argument in enumerate(schema.arguments) if argument.name == "beta"), None)


def true_name(op: Any) -> tuple[str, str]:
    """The type of an operator and its full name: ("add", "aten::add.Tensor"), ("convolution", "aten::convolution")."""
    schema = operator_schema(op)
    if schema is None:
        name = str(getattr(op, "__name__", op))
        return name, f"higher_order::{name}"
    name = schema.name.partition("::")[2]
    return name, f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def is_native(op: Any) -> bool:
    """Whether it is PyTorch's own, so that the schema and the tables above list everything that it writes."""
    schema = operator_schema(op)
    return schema is not None and schema.name.partition("::")[0] in _NATIVE_NAMESPACES


def is_asynchronous(op: Any) -> bool:
    """Whether an operator returns while its results are still being written.

    Its inputs can be read before it runs, its outputs only after the program has waited for them.
    """
    schema = operator_schema(op)
    if schema is None:
        return False
    namespace, _, name = schema.name.partition("::")
    return namespace in _COLLECTIVES and name not in _AFTER_THE_WAIT


def _returns_aliases_alone(schema: Any) -> bool:
    """Whether all results alias arguments, and nothing is written."""
    if not schema.returns or any(value.alias_info is None or value.alias_info.is_write for value in schema.returns):
        return False
    return not _writes(schema)


def _writes(schema: Any) -> bool:
    return any(value.alias_info is not None and value.alias_info.is_write for value in schema.arguments)


# Reads schemas, and finds tensors among arguments and results.

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_NUMBERS: Final = frozenset({int, float, complex, bool})
Found = tuple[int, str, torch.Tensor]
"""Slot, name of the argument or result, tensor."""


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """What the mode needs to know about an operator, computed once."""

    op_type: str
    kernel: str
    kind: SkipReason
    tensors: tuple[tuple[int, str], ...]
    """Positions and names of the arguments that are tensors or lists of tensors, in schema order."""
    others: tuple[tuple[int, str], ...]
    written: tuple[tuple[int, str], ...]
    """Positions and names of the arguments that the operator writes and does not return."""
    asynchronous: bool = False
    """Whether its results are still being written when it returns (collectives)."""
    non_blocking: int | None = None
    """Position of the argument with which a program skips waiting for a copy to the host; None without one."""
    changes: frozenset[str] = frozenset()
    """Names of the arguments that the operator writes, returned or not."""
    counted: tuple[tuple[int, str], ...] = ()
    """Positions and names of the written arguments whose version counter PyTorch increments."""
    declares_writes: bool = False
    """Whether `changes` is known to be complete, which it is not for a custom operator."""
    unread: frozenset[str] = frozenset()
    """Names of the arguments whose values the operator does not read."""
    factor: int | None = None
    """Position of the argument `beta`; if that is 0, `self` is not read. None without one."""
    pickers: dict[int, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = field(default_factory=dict)
    """Functions that take `others` from the positional arguments, by the number of these."""

    def is_late(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether tensors on the host may still be written when the operator returns, until the program waits for them."""
        place = self.non_blocking
        if place is None:
            return False
        return bool(args[place] if place < len(args) else kwargs.get("non_blocking"))

    def unread_among(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> frozenset[str]:
        """Names of the arguments whose values this call of the operator does not read."""
        place = self.factor
        if place is None or (args[place] if place < len(args) else kwargs.get("beta", 1)) != 0:
            return self.unread
        return self.unread | {"self"}

    def others_among(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments other than tensors; each keyword argument is preceded by its name."""
        pick = self.pickers.get(len(args))
        if pick is None:
            pick = self.pickers[len(args)] = _picker([index for index, _ in self.others if index < len(args)])
        if not kwargs:
            return pick(args)
        named = [part for _, name in self.others if name in kwargs for part in (name, kwargs[name])]
        return (*pick(args), *named)

    def numbers_among(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The numbers given for tensor arguments (`other` of `x + 1`), with their names; in a list, None for each tensor."""
        given = len(args)
        found: tuple[tuple[str, Any], ...] = ()
        for index, name in self.tensors:
            value = args[index] if index < given else kwargs.get(name)
            kind = value.__class__
            if kind is _Tensor or kind is _Parameter or value is None:
                continue
            if kind is list or kind is tuple:
                if any(element.__class__ in _NUMBERS for element in value):
                    numbers = [element if element.__class__ in _NUMBERS else None for element in value]
                    found = (*found, (name, numbers))
            elif isinstance(value, (int, float, complex)):
                found = (*found, (name, value))
        return found


def schema_of(func: Any) -> OperatorSchema:
    """What the mode needs to know about an operator, derived from its schema."""
    arguments = operator_schema(func).arguments
    tensors: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    for index, argument in enumerate(arguments):
        is_tensor = "Tensor" in str(argument.type)
        (tensors if is_tensor else others).append((index, argument.name))
    op_type, kernel = true_name(func)
    names = {argument.name: index for index, argument in enumerate(arguments)}
    returned = sum(
        1 for value in operator_schema(func).returns if value.alias_info is not None and value.alias_info.is_write
    )
    writes = writes_of(func)
    written = tuple((names[name], name) for name in writes) if not returned else _unreturned(func, names)
    return OperatorSchema(
        op_type,
        kernel,
        kind_of(func),
        tuple(tensors),
        tuple(others),
        written,
        is_asynchronous(func),
        names.get("non_blocking"),
        frozenset(writes),
        _counted(func),
        is_native(func),
        unread_of(func),
        factor_of_self(func),
    )


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that returns these places of a tuple, always as a tuple, unlike `itemgetter` for fewer than two."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(slice(0))


def _counted(func: Any) -> tuple[tuple[int, str], ...]:
    """Written tensors whose writes PyTorch counts: not those in lists, and only if the operator has a kernel that counts."""
    schema = operator_schema(func)
    found = [
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and "[]" not in str(argument.type)
    ]
    return tuple(found) if found and has_kernel(func.name(), KEY_OF_COUNTS) else ()


def _unreturned(func: Any, names: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
    """Written arguments that no return value aliases."""
    aliased: set[str] = set()
    for value in operator_schema(func).returns:
        if value.alias_info is not None:
            aliased |= set(value.alias_info.before_set)
    kept = []
    for name in writes_of(func):
        info = operator_schema(func).arguments[names[name]].alias_info
        if info is None or aliased.isdisjoint(info.before_set):
            kept.append((names[name], name))
    return tuple(kept)


def tensors_among(
    places: Sequence[tuple[int, str]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Found]:
    """The tensors among the arguments; None keeps its slot, a list takes a slot for each element."""
    given = len(args)
    slot = 0
    for index, argument in places:
        value = args[index] if index < given else kwargs.get(argument)
        if value is None:
            slot += 1
        elif isinstance(value, _Tensor):
            yield slot, argument, value
            slot += 1
        elif isinstance(value, (list, tuple)):
            for position, element in enumerate(value):
                if isinstance(element, torch.Tensor):
                    yield slot, f"{argument}[{position}]", element
                elif isinstance(element, (list, tuple)):  # collectives have a list per rank
                    for path, inner in nested_tensors(element, f"{argument}[{position}]"):
                        yield slot, path, inner
                        slot += 1
                    continue
                slot += 1
        else:
            slot += 1


def tensors_returned(
    schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> list[Found]:
    """The tensors that an operator returned, then those that it wrote without returning them."""
    if isinstance(result, _Tensor):
        found = [(0, "", result)]
    elif isinstance(result, (tuple, list)):
        found = [
            (slot, path, value)
            for slot, (path, value) in enumerate(nested_tensors(result, "", keep_none=True))
            if value is not None
        ]
    else:
        found = []
    if schema.written:
        first = max((slot for slot, _, _ in found), default=-1) + 1
        written = tensors_among(schema.written, args, kwargs)
        found += [(first + slot, argument, tensor) for slot, argument, tensor in written]
    return found


def nested_tensors(values: Any, path: str, *, keep_none: bool = False) -> Iterator[tuple[str, Any]]:
    """The tensors in nested sequences and mappings, with their paths."""
    items = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in items:
        here = f"{path}[{key}]"
        if isinstance(value, torch.Tensor) or (keep_none and value is None):
            yield here, value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from nested_tensors(value, here, keep_none=keep_none)
