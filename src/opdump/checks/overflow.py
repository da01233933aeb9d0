"""Determines the overflow status of an operator, as far as its data proves it.

    0x8    the smallest integer was negated
    0x10   an integer addition, subtraction, multiplication or sum of products left the range of its type
    0x20   finite floats in, NaN or infinity out; also a cast to any float but FP16
    0x80   a negative float was cast to an unsigned integer
    0x100  a finite number was cast to FP16 and came out infinite
    0x400  as 0x20, for products of matrices, convolutions, attention and their gradients

What the data does not prove is not reported (docs/overflow.md#what-does-not-count-as-overflow): an operator with a NaN or an infinity among
its inputs or arguments may pass them on, and an operator whose inputs are unavailable is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from opdump.checks.inspected_tensor import FLOATS, INTEGERS, UNSIGNED, InspectedTensor
from opdump.checks.integer_overflow import integer_status
from opdump.checks.not_finite import has_only_finite_arguments
from opdump.checks.operator_classes import adds_atomically, class_of
from opdump.op_types import bare_name

OverflowKind = Literal["aicore", "atomic"]
OVERFLOW_KINDS: Final[frozenset[OverflowKind]] = frozenset({"aicore", "atomic"})


@dataclass(frozen=True, slots=True)
class OverflowStatus:
    """How an operator overflowed."""

    bits: int
    """Any bit of the AI Core's status."""
    kind: OverflowKind = "aicore"


FLOAT: Final = 0x20
NEGATIVE_TO_UNSIGNED: Final = 0x80
TO_FP16: Final = 0x100
CUBE: Final = 0x400

# The frameworks whose operators are known by name. Users write further operators for PyTorch.
_NAMESPACES: Final = (
    *("aten", "prims", "c10d", "_c10d", "ai.onnx", "onnx"),
    *("com.microsoft", "com.ms.internal", "higher_order"),
)
_FOREACH: Final = "_foreach_"
# Buffers that are written and not read.
_WRITTEN_ONLY: Final = frozenset({"out", "out0", "out1", "out2"})
# Their other outputs are logarithms of probabilities, -Inf for impossible events.
_LOGARITHMS_OF_ZERO: Final = frozenset({"_ctc_loss", "_cudnn_ctc_loss", "miopen_ctc_loss"})
# Inputs that are ignored if `beta` is 0: they may be uninitialised memory.
_SCALED_BY_BETA: Final = frozenset({"addmm", "addmv", "addbmm", "baddbmm", "addr", "_addmm_activation", "sspaddmm"})


@lru_cache(maxsize=4096)
def _known_name(op_type: str, kernel: str) -> str:
    namespace, colons, _ = kernel.partition("::")
    name = bare_name(op_type)
    # A user-defined operator may use any name for anything.
    return name if not colons or namespace.startswith(_NAMESPACES) else f"{namespace}_{name}"


def overflow_kind(op_type: str, arguments: Mapping[str, Any]) -> OverflowKind:
    """The kind of `op_debug_mode` that an overflow of this operator belongs to: `atomic` for additions that a device does
    atomically.
    """
    return "atomic" if adds_atomically(op_type, arguments) else "aicore"


def overflow_status(
    op_type: str,
    kernel: str,
    arguments: Mapping[str, Any],
    inputs: Sequence[InspectedTensor],
    outputs: Sequence[InspectedTensor],
    kinds: Collection[OverflowKind] = OVERFLOW_KINDS,
) -> int:
    """The status bits that the data of one executed operator proves; 0 for none, and for kinds of overflow that were not
    requested.

    `op_type` is the type in the framework's spelling (`add_`, `MatMul`), `kernel` the full name of the kernel
    (`aten::add_.Tensor`, empty if there is none). `arguments` are the non-tensor arguments of the operator by name, including
    numbers in the place of a tensor (`x + 1`); non-finite ones as floats or as `{"float": "-inf"}`. `inputs` are the values
    before the operator ran, `outputs` those after it, including tensors that it wrote into. Both are in slot order, with the
    names of the schema.

    An ordinary operator on floats only needs the summaries. Elements are read if an integer result may have left its range (by
    the extremes of the inputs), and for types without a summary. Empty tensors never overflow.
    """
    if overflow_kind(op_type, arguments) not in kinds:
        return 0
    name = _known_name(op_type, kernel)
    if name.startswith(_FOREACH):
        return _of_each(name.removeprefix(_FOREACH), arguments, inputs, outputs)
    return _status(name, arguments, inputs, outputs)


def _status(
    name: str, arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor], outputs: Sequence[InspectedTensor]
) -> int:
    operator = class_of(name)
    if operator == "casts":
        return _cast_status(name, inputs, outputs)
    if operator == "moves" and not adds_atomically(name, arguments):
        return 0
    if all(output.dtype in FLOATS and output.is_finite for output in outputs):
        return 0  # nearly always
    status = 0
    for output in outputs[:1] if name in _LOGARITHMS_OF_ZERO else outputs:
        if output.is_exact:
            if output.dtype in INTEGERS and not status & 0x18:
                status |= integer_status(name, arguments, inputs, output)
        elif output.is_finite is False and _are_finite(name, arguments, inputs):
            if not _may_be_masked_out(name, inputs, outputs):
                status |= CUBE if operator == "cube" else FLOAT
            break
    return status


def _are_finite(name: str, arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor]) -> bool:
    """Whether all inputs are known to be finite and not empty."""
    if not has_only_finite_arguments(arguments):
        return False
    ignored = {"self", "input"} if name in _SCALED_BY_BETA and arguments.get("beta") == 0 else set()
    read = [seen for seen in inputs if seen.argument not in _WRITTEN_ONLY and seen.argument not in ignored]
    data = [seen for seen in read if not seen.is_exact] or read
    if data and all(seen.is_empty for seen in data):
        return False  # the mean of no elements is NaN, but nothing was computed
    return all(seen.is_exact or seen.is_finite for seen in data)


def _may_be_masked_out(name: str, inputs: Sequence[InspectedTensor], outputs: Sequence[InspectedTensor]) -> bool:
    """Whether the operator takes a bool mask, from which it makes -Inf, and its output has no +Inf: a row may be fully masked."""
    if not any(word in name.lower() for word in ("attention", "softmax")):
        return False
    if not any(seen.dtype == "bool" for seen in inputs):
        return False
    return not any(output.summary is not None and output.summary.positive_inf for output in outputs)


def _cast_status(name: str, inputs: Sequence[InspectedTensor], outputs: Sequence[InspectedTensor]) -> int:
    if not inputs or not outputs:
        return 0
    source = _cast_source(name, inputs)
    made = outputs[0]
    if source.dtype in (made.dtype, "bool") or source.is_empty or made.is_empty:
        return 0
    if made.dtype in UNSIGNED:
        negative = source.dtype in FLOATS and source.summary is not None and source.summary.negative > 0
        return NEGATIVE_TO_UNSIGNED if negative else 0
    if made.is_exact:
        return 0
    before, after = source.count_of_non_finite(), made.count_of_non_finite()
    if before is None or after is None:
        return 0
    # Elements are cast one by one, so a finite one overflowed if the output has more non-finite elements than the
    # input; `copy_` repeats its source. Some 8-bit types have a NaN and no infinity.
    repeated = math.prod(made.shape) // max(math.prod(source.shape), 1)
    if sum(after) <= sum(before) * repeated:
        return 0
    return TO_FP16 if made.dtype == "float16" else FLOAT


def _cast_source(name: str, inputs: Sequence[InspectedTensor]) -> InspectedTensor:
    """The input that is cast: the second one of `copy_(self, src)`."""
    if name == "copy":
        return next((seen for seen in inputs if seen.argument == "src"), inputs[-1])
    return inputs[0]


def _of_each(
    name: str, arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor], outputs: Sequence[InspectedTensor]
) -> int:
    """An operator over lists of tensors counts as one operator per index."""
    status = 0
    for place, output in enumerate(outputs):
        of_place = [
            seen._replace(argument=seen.argument.removesuffix(f"[{place}]"))
            for seen in inputs
            if seen.argument.endswith(f"[{place}]") or "[" not in seen.argument
        ]
        numbers = {key: value for key, value in arguments.items() if key not in ("scalar", "scalars", "exponent")}
        scalars = arguments.get("scalars")
        if isinstance(scalars, (list, tuple)) and place < len(scalars):
            numbers["other"] = scalars[place]
        elif "scalar" in arguments:
            numbers["other"] = arguments["scalar"]
        status |= _status(name, numbers, of_place, [output])
    return status
