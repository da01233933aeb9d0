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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from opdump.checks.not_finite import has_only_finite_arguments
from opdump.checks.operator_classes import adds_atomically, class_of
from opdump.checks.tensor_checks import FLOATS, INTEGERS, SIGNED, UNSIGNED, InspectedTensor
from opdump.op_types import bare_name, is_dispatched

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
    namespace = kernel.partition("::")[0]
    name = bare_name(op_type)
    # A user-defined operator may use any name for anything.
    return name if not is_dispatched(kernel) or namespace.startswith(_NAMESPACES) else f"{namespace}_{name}"


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
    if all(output.cannot_have_overflowed for output in outputs):
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


# Recomputes integer operators in a wider type, to find results that left the range of their type: the extremes of the inputs bound
# the result, and elements are read only if the bound exceeds the range.

NEGATED_MINIMUM: Final = 0x8
INTEGER: Final = 0x10

_NEGATIONS: Final = frozenset({"neg", "negative", "abs", "absolute", "Neg", "Abs"})

Array = npt.NDArray[Any]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor or a number, by its extremes; `read` returns it as an array."""

    shape: tuple[int, ...]
    interval: Interval
    read: Callable[[], Array] | None


@dataclass(frozen=True, slots=True)
class _Rule:
    """How an operator computes: the names of its operands, the interval of its result, and the result in a wide type."""

    operands: tuple[str, ...]
    interval: Callable[[Sequence[_Operand], Mapping[str, Any], InspectedTensor], Interval]
    compute: Callable[[Sequence[Array], Mapping[str, Any], InspectedTensor], Array]


def _safe_range(dtype: str) -> Interval:
    """Numbers that are certainly in the range of the type: float64 rounds the ends of 64-bit ranges."""
    limits = np.iinfo(dtype)
    margin = 1e-9 * limits.max if dtype.endswith("64") else 0.0
    return (limits.min + margin if limits.min else 0.0), limits.max - margin


_SAFE: Final[Mapping[str, Interval]] = {dtype: _safe_range(dtype) for dtype in INTEGERS}


def integer_status(
    name: str, arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor], output: InspectedTensor
) -> int:
    """0x8 or 0x10 if the integers of `output` provably differ from the exact result of the operator, else 0.

    It covers additions, subtractions, multiplications, powers, sums, products, their cumulative forms, and matrix products, under
    the names of PyTorch and ONNX. Only integer elements are checked, so an operator with a float among its inputs returns 0.
    """
    key = bare_name(name)
    rule = _RULES.get(key)
    if rule is None and key in _NEGATIONS:
        return NEGATED_MINIMUM if _has_minimum(inputs, output) else 0
    if rule is None or output.is_empty:
        return 0
    operands = _operands(rule.operands, arguments, inputs)
    if operands is None:
        return 0
    try:
        low, high = rule.interval(operands, arguments, output)
        least, most = _SAFE[output.dtype]
        if (least <= low and high <= most) or any(operand.read is None for operand in operands):
            return 0
        arrays = [operand.read() for operand in operands if operand.read is not None]
        given = _with_axes(key, arguments, inputs)
        left = _left_range(rule, arrays, given, output, is_small=max(abs(low), abs(high)) < 2.0**62)
    except _UnknownAxesError:
        return 0
    return INTEGER if left else 0


class _UnknownAxesError(Exception):
    """The axes along which the operator worked are unknown."""


def _with_axes(key: str, arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor]) -> Mapping[str, Any]:
    """The arguments, with the axes that newer ONNX operators take as a tensor."""
    if not (key.startswith("Reduce") or key in ("CumSum", "CumProd")) or len(inputs) < 2:
        return arguments
    read = inputs[1].elements
    if read is None:
        raise _UnknownAxesError
    return {**arguments, "axes": [int(axis) for axis in np.ravel(read())]}


def _left_range(
    rule: _Rule, arrays: list[Array], arguments: Mapping[str, Any], output: InspectedTensor, *, is_small: bool
) -> bool:
    limits = np.iinfo(output.dtype)
    if is_small:
        exact = rule.compute([array.astype(np.int64) for array in arrays], arguments, output)
        return bool(np.any(exact < limits.min) or np.any(exact > limits.max))
    with np.errstate(all="ignore"):
        near = rule.compute([array.astype(np.float64) for array in arrays], arguments, output)
    slack = 1e-9 * float(limits.max)
    if np.any(near > float(limits.max) + slack) or np.any(near < float(limits.min) - slack):
        return True
    if not (np.any(near > float(limits.max) - slack) or np.any(near < float(limits.min) + slack)):
        return False
    # Too near the end of the range for float64: Python integers of any size.
    whole = rule.compute([array.astype(object) for array in arrays], arguments, output)
    return any(not limits.min <= int(value) <= limits.max for value in np.ravel(np.asarray(whole, object)))


def _has_minimum(inputs: Sequence[InspectedTensor], output: InspectedTensor) -> bool:
    if output.dtype not in SIGNED or not inputs or inputs[0].dtype != output.dtype or inputs[0].summary is None:
        return False
    minimum = np.iinfo(output.dtype).min
    if inputs[0].summary.min > minimum or inputs[0].is_empty:
        return False
    if output.dtype != "int64":
        return True
    elements = inputs[0].elements  # in float64 the neighbours of the smallest int64 equal it
    return elements is not None and bool(np.any(elements() == minimum))


def _operands(
    names: tuple[str, ...], arguments: Mapping[str, Any], inputs: Sequence[InspectedTensor]
) -> tuple[_Operand, ...] | None:
    """The operands by their PyTorch names if the inputs have names, else by position; None if one is missing or is not an
    integer.
    """
    values: dict[str, InspectedTensor | float] = {seen.argument: seen for seen in inputs}
    if values.keys().isdisjoint(names):
        values = dict(zip(names, inputs, strict=False))
    else:
        values = {**{name: number for name, number in arguments.items() if isinstance(number, int)}, **values}
    found: list[InspectedTensor | float] = []
    for place, name in enumerate(names):
        if name.endswith("*"):
            found.extend(inputs[place:])
        elif name in values:
            found.append(values[name])
        else:
            return None
    operands = [_operand(each) for each in found]
    known = tuple(operand for operand in operands if operand is not None)
    return known if known and len(known) == len(operands) else None


def _operand(value: InspectedTensor | float) -> _Operand | None:
    if not isinstance(value, InspectedTensor):
        number = int(value)
        return _Operand((), (number, number), lambda: np.asarray(number, object))
    if not value.is_exact or value.summary is None:
        return None
    interval = (0.0, 0.0) if value.is_empty else (value.summary.min, value.summary.max)
    return _Operand(value.shape, interval, value.elements)


def _plus(one: Interval, other: Interval) -> Interval:
    return one[0] + other[0], one[1] + other[1]


def _times(one: Interval, other: Interval) -> Interval:
    corners = [a * b for a in one for b in other]
    return min(corners), max(corners)


def _summed(terms: float, one: Interval) -> Interval:
    """The interval of a sum of up to `terms` such numbers."""
    return min(one[0], one[0] * terms), max(one[1], one[1] * terms)


def _power(one: Interval, exponent: float) -> Interval:
    largest = max(abs(one[0]), abs(one[1]), 1.0)
    try:
        bound = largest**exponent
    except OverflowError:
        bound = math.inf
    return (0.0 if one[0] >= 0 else -bound), bound


def _number(arguments: Mapping[str, Any], name: str, default: int = 1) -> int:
    value = arguments.get(name, default)
    return int(value) if isinstance(value, (int, float)) and float(value).is_integer() else default


def _add(sign: int, *, swapped: bool = False) -> _Rule:
    def factors(arguments: Mapping[str, Any]) -> tuple[int, int]:
        scaled = sign * _number(arguments, "alpha")
        return (scaled, 1) if swapped else (1, scaled)

    def interval(operands: Sequence[_Operand], arguments: Mapping[str, Any], _: InspectedTensor) -> Interval:
        first, second = factors(arguments)
        one, other = operands[0].interval, operands[1].interval
        return _plus(_times(one, (first, first)), _times(other, (second, second)))

    def compute(arrays: Sequence[Array], arguments: Mapping[str, Any], _: InspectedTensor) -> Array:
        first, second = factors(arguments)
        return np.asarray(arrays[0] * first + arrays[1] * second)

    return _Rule(("self", "other"), interval, compute)


def _all_added() -> _Rule:
    def interval(operands: Sequence[_Operand], _: Mapping[str, Any], __: InspectedTensor) -> Interval:
        total: Interval = (0.0, 0.0)
        for operand in operands:
            total = _plus(total, operand.interval)
        return total

    return _Rule(("tensors*",), interval, lambda arrays, _, __: np.asarray(sum(arrays)))


_MULTIPLY: Final = _Rule(
    ("self", "other"),
    lambda operands, _, __: _times(operands[0].interval, operands[1].interval),
    lambda arrays, _, __: np.asarray(arrays[0] * arrays[1]),
)
_SQUARE: Final = _Rule(
    ("self",),
    lambda operands, _, __: _power(operands[0].interval, 2),
    lambda arrays, _, __: np.asarray(arrays[0] * arrays[0]),
)
_POWER: Final = _Rule(
    ("self", "exponent"),
    # A negative power of an integer is a fraction, which is truncated: nothing overflows.
    lambda operands, _, __: (
        (0.0, 0.0) if operands[1].interval[0] < 0 else _power(operands[0].interval, operands[1].interval[1])
    ),
    lambda arrays, _, __: np.asarray(np.power(arrays[0], arrays[1])),
)
_OUTER: Final = _Rule(
    ("self", "vec2"),
    lambda operands, _, __: _times(operands[0].interval, operands[1].interval),
    lambda arrays, _, __: np.asarray(np.multiply.outer(arrays[0], arrays[1])),
)
_ADD_PRODUCTS: Final = _Rule(
    ("self", "tensor1", "tensor2"),
    lambda operands, arguments, _: _plus(
        operands[0].interval,
        _times(
            _times(operands[1].interval, operands[2].interval),
            (_number(arguments, "value"), _number(arguments, "value")),
        ),
    ),
    lambda arrays, arguments, _: np.asarray(arrays[0] + _number(arguments, "value") * arrays[1] * arrays[2]),
)


def _named_axes(arguments: Mapping[str, Any], dimensions: int) -> tuple[int, ...] | None:
    given = arguments.get("dim", arguments.get("axes", arguments.get("axis")))
    axes = (given,) if isinstance(given, int) else tuple(given) if isinstance(given, (list, tuple)) else ()
    return tuple(axis % dimensions for axis in axes) if axes and dimensions else None


def _axes(arguments: Mapping[str, Any], source: tuple[int, ...], output: InspectedTensor) -> tuple[int, ...]:
    """The axes that a reduction removed: those that it names, else those missing from the result."""
    named = _named_axes(arguments, len(source))
    if named is not None:
        return named
    if math.prod(output.shape) == 1:
        return tuple(range(len(source)))
    if len(output.shape) != len(source):
        raise _UnknownAxesError
    return tuple(axis for axis in range(len(source)) if output.shape[axis] != source[axis])


def _reduction(step: Literal["sum", "product"], *, of: Callable[[Array], Array] = np.asarray, degree: int = 1) -> _Rule:
    reduce: Callable[..., Any] = np.sum if step == "sum" else np.prod

    def interval(operands: Sequence[_Operand], _: Mapping[str, Any], output: InspectedTensor) -> Interval:
        one = operands[0].interval if degree == 1 and of is np.asarray else _power(operands[0].interval, degree)
        terms = math.prod(operands[0].shape) / max(math.prod(output.shape), 1)
        return _summed(terms, one) if step == "sum" else _power(one, terms)

    def compute(arrays: Sequence[Array], arguments: Mapping[str, Any], output: InspectedTensor) -> Array:
        return np.asarray(reduce(of(arrays[0]), axis=_axes(arguments, arrays[0].shape, output)))

    return _Rule(("self",), interval, compute)


def _running(step: Literal["sum", "product"]) -> _Rule:
    def interval(operands: Sequence[_Operand], arguments: Mapping[str, Any], _: InspectedTensor) -> Interval:
        shape = operands[0].shape
        axes = _named_axes(arguments, len(shape))
        terms = max(shape, default=1) if axes is None else shape[axes[0]]
        one = operands[0].interval
        return _summed(terms, one) if step == "sum" else _power(one, terms)

    def compute(arrays: Sequence[Array], arguments: Mapping[str, Any], _: InspectedTensor) -> Array:
        array = arrays[0]
        if not array.ndim:
            return array
        axes = _named_axes(arguments, array.ndim)
        if axes is None:
            raise _UnknownAxesError
        if arguments.get("reverse"):
            array = np.flip(array, axes[0])
        if arguments.get("exclusive"):
            array = np.take(array, range(array.shape[axes[0]] - 1), axis=axes[0])
        accumulate = np.add.accumulate if step == "sum" else np.multiply.accumulate
        return np.asarray(accumulate(array, axis=axes[0]))

    return _Rule(("self",), interval, compute)


def _product(operands: tuple[str, ...], *, plus: bool = False) -> _Rule:
    """The product of matrices or vectors; `plus` is added after scaling by `beta` and `alpha`."""

    def interval(found: Sequence[_Operand], arguments: Mapping[str, Any], _: InspectedTensor) -> Interval:
        left, right = found[-2:]
        one = _summed(left.shape[-1] if left.shape else 1, _times(left.interval, right.interval))
        if not plus:
            return one
        alpha, beta = _number(arguments, "alpha"), _number(arguments, "beta")
        return _plus(_times(one, (alpha, alpha)), _times(found[0].interval, (beta, beta)))

    def compute(arrays: Sequence[Array], arguments: Mapping[str, Any], _: InspectedTensor) -> Array:
        product = np.asarray(np.matmul(arrays[-2], arrays[-1]))
        if not plus:
            return product
        return np.asarray(_number(arguments, "alpha") * product + _number(arguments, "beta") * arrays[0])

    return _Rule(operands, interval, compute)


# The spelling distinguishes some: `sum` of PyTorch reduces, `Sum` of ONNX adds its inputs.
_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("add", "Add"), _add(1)),
    **dict.fromkeys(("sub", "subtract", "Sub"), _add(-1)),
    "rsub": _add(-1, swapped=True),
    "Sum": _all_added(),
    **dict.fromkeys(("mul", "multiply", "Mul"), _MULTIPLY),
    "square": _SQUARE,
    **dict.fromkeys(("pow", "Pow"), _POWER),
    "addcmul": _ADD_PRODUCTS,
    **dict.fromkeys(("sum", "ReduceSum"), _reduction("sum")),
    "ReduceSumSquare": _reduction("sum", of=np.square, degree=2),
    "ReduceL1": _reduction("sum", of=np.abs),
    **dict.fromkeys(("prod", "ReduceProd"), _reduction("product")),
    **dict.fromkeys(("cumsum", "CumSum"), _running("sum")),
    **dict.fromkeys(("cumprod", "CumProd"), _running("product")),
    **dict.fromkeys(("mm", "bmm", "_int_mm"), _product(("self", "mat2"))),
    "mv": _product(("self", "vec")),
    "dot": _product(("self", "tensor")),
    **dict.fromkeys(("vdot", "matmul", "MatMul"), _product(("self", "other"))),
    "addmm": _product(("self", "mat1", "mat2"), plus=True),
    "addmv": _product(("self", "mat", "vec"), plus=True),
    "baddbmm": _product(("self", "batch1", "batch2"), plus=True),
    **dict.fromkeys(("ger", "outer"), _OUTER),
}
