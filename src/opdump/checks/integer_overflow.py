"""Recomputes integer operators in a wider type, to find results that left the range of their type.

The extremes of the inputs bound the result. Elements are read only if the bound exceeds the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from opdump.checks.inspected_tensor import INTEGERS, SIGNED, InspectedTensor
from opdump.op_types import bare_name

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
    named = {seen.argument: seen for seen in inputs}
    by_name = any(name in named for name in names)
    found: list[InspectedTensor | float] = []
    for place, name in enumerate(names):
        if name.endswith("*"):
            found.extend(inputs[place:])
        elif by_name and name in named:
            found.append(named[name])
        elif by_name and isinstance(arguments.get(name), int):
            found.append(arguments[name])
        elif not by_name and place < len(inputs):
            found.append(inputs[place])
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
