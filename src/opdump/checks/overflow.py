"""Works out the overflow status of an operator, as far as its data proves it.

    0x8    the smallest integer was negated
    0x10   an integer addition, subtraction, multiplication or sum of products left the range of its type
    0x20   finite floats in, NaN or infinity out; also a cast to any float but FP16
    0x80   a negative float was cast to an unsigned integer
    0x100  a finite number was cast to FP16 and came out infinite
    0x400  as 0x20, for products of matrices, convolutions, attention and their gradients

What the data does not prove is not reported (docs/overflow.md#what-does-not-count-as-overflow): an operator with a NaN or an infinity among
its inputs or arguments may give them back, and one whose inputs could not be looked at is left alone.
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
    """Those of the AI Core's status."""
    kind: OverflowKind = "aicore"


FLOAT: Final = 0x20
NEGATIVE_TO_UNSIGNED: Final = 0x80
TO_FP16: Final = 0x100
CUBE: Final = 0x400

# Whose operators are known by name. Further ones of PyTorch are written by users.
_NAMESPACES: Final = (
    *("aten", "prims", "c10d", "_c10d", "ai.onnx", "onnx"),
    *("com.microsoft", "com.ms.internal", "higher_order"),
)
_FOREACH: Final = "_foreach_"
# Buffers that are written and not read.
_WRITTEN_ONLY: Final = frozenset({"out", "out0", "out1", "out2"})
# Their further results are logarithms of probabilities, -Inf for what is impossible.
_LOGARITHMS_OF_ZERO: Final = frozenset({"_ctc_loss", "_cudnn_ctc_loss", "miopen_ctc_loss"})
# Inputs that count for nothing where `beta` is 0: they may be memory without values.
_SCALED_BY_BETA: Final = frozenset({"addmm", "addmv", "addbmm", "baddbmm", "addr", "_addmm_activation", "sspaddmm"})


@lru_cache(maxsize=4096)
def _known_name(op_type: str, kernel: str) -> str:
    namespace, colons, _ = kernel.partition("::")
    name = bare_name(op_type)
    # The name of somebody's own operator may mean anything.
    return name if not colons or namespace.startswith(_NAMESPACES) else f"{namespace}_{name}"


def overflow_kind(op_type: str, arguments: Mapping[str, Any]) -> OverflowKind:
    """Which of the kinds of `op_debug_mode` an overflow of this operator is: `atomic` for what a device adds atomically."""
    return "atomic" if adds_atomically(op_type, arguments) else "aicore"


def overflow_status(
    op_type: str,
    kernel: str,
    arguments: Mapping[str, Any],
    inputs: Sequence[InspectedTensor],
    outputs: Sequence[InspectedTensor],
    kinds: Collection[OverflowKind] = OVERFLOW_KINDS,
) -> int:
    """The status bits that the data of one executed operator proves; 0 for none, and for kinds of overflow not wanted.

    `op_type` is the type in the framework's spelling (`add_`, `MatMul`), `kernel` the full name of what ran (`aten::add_.Tensor`,
    empty where there is none). `arguments` are the operator's arguments that are no tensors by name, also the numbers that stand
    where a tensor could (`x + 1`); non-finite ones as floats or as `{"float": "-inf"}`. `inputs` are what they were before the
    operator ran, `outputs` what they were after, among them what it wrote into. Both in slot order, with the names of the schema.

    An ordinary operator on floats costs a look at the summaries. Elements are asked for where an integer result may have left its
    range (by the extremes of the inputs), and of types without a summary. Empty tensors overflow nothing.
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
    """Whether everything that the operator read is known to be finite, and is something."""
    if not has_only_finite_arguments(arguments):
        return False
    ignored = {"self", "input"} if name in _SCALED_BY_BETA and arguments.get("beta") == 0 else set()
    read = [seen for seen in inputs if seen.argument not in _WRITTEN_ONLY and seen.argument not in ignored]
    data = [seen for seen in read if not seen.is_exact] or read
    if data and all(seen.is_empty for seen in data):
        return False  # the mean of nothing is NaN, and nothing was computed
    return all(seen.is_exact or seen.is_finite for seen in data)


def _may_be_masked_out(name: str, inputs: Sequence[InspectedTensor], outputs: Sequence[InspectedTensor]) -> bool:
    """Whether the operator takes a mask of bool, inside of which it makes -Inf, and no +Inf came out: a row may be all masked."""
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
    # Elements are cast one by one, so a finite one overflowed where there are more of the others than there were; `copy_` repeats
    # its source. Some types of 8 bits have a NaN and no infinity.
    repeated = math.prod(made.shape) // max(math.prod(source.shape), 1)
    if sum(after) <= sum(before) * repeated:
        return 0
    return TO_FP16 if made.dtype == "float16" else FLOAT


def _cast_source(name: str, inputs: Sequence[InspectedTensor]) -> InspectedTensor:
    """What is cast: of `copy_(self, src)` the second."""
    if name == "copy":
        return next((seen for seen in inputs if seen.argument == "src"), inputs[-1])
    return inputs[0]


def _of_each(
    name: str, arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor], outputs: Sequence[InspectedTensor]
) -> int:
    """An operator over lists of tensors is one operator for each place of the lists."""
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
