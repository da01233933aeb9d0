"""Runs recorded operators of MindSpore again: as its primitives, in the recorded types or in float64, and those without float64 in numpy.

In a record of compiled code, `slot` is the position among all inputs of the primitive; constants are inputs. In PyNative mode, slots count tensors,
and the name of the argument gives the position.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import mindspore as ms
import numpy as np
from mindspore._c_expression.typing import type_to_type_id
from mindspore.ops import operations
from mindspore.ops.auto_generate import gen_ops_prim
from mindspore.ops.operations import _grad_ops

from opdump.adapters.replay import AS_RECORDED, Array, Replayed, Replayer, Script, as_python, script_with_distances
from opdump.errors import CannotReplayError
from opdump.graph import CONSTANT_PREFIX, PYNATIVE
from opdump.records import OpRecord, TensorRecord, graph_shapes

_DRAWS: Final = re.compile(
    r"(?:Dropout(?!.*Grad)|Rand|StandardNormal|Normal|Uniform(?!Candidate)|Bernoulli|Multinomial|Gamma$|Poisson|ParameterizedTruncatedNormal"
    r"|TruncatedNormal|LogUniform|StandardLaplace|InplaceNormal|InplaceUniform|InplaceRandom|InplaceExponential|InplaceBernoulli)"
)
_PLAIN: Final = frozenset(
    {
        *(
            "alpha",
            "axes",
            "axis",
            "begin",
            "beta",
            "ceil_mode",
            "chunks",
            "correction",
            "depth",
            "descending",
            "diagonal",
            "dilation",
            "dilations",
        ),
        *(
            "dim",
            "dim0",
            "dim1",
            "dims",
            "dtype",
            "end",
            "end_mask",
            "eps",
            "exclusive",
            "factor",
            "groups",
            "keep_dims",
            "keepdim",
            "kernel_size",
        ),
        *(
            "k",
            "largest",
            "momentum",
            "multiples",
            "n",
            "negative_slope",
            "num_groups",
            "num_segments",
            "offset",
            "output_padding",
            "output_size",
        ),
        *(
            "padding",
            "reduction",
            "repeats",
            "reverse",
            "shape",
            "shifts",
            "size",
            "sorted",
            "split_size_or_sections",
            "split_size",
            "start",
        ),
        *("step", "stride", "strides", "threshold", "training", "transposed", "unbiased"),
    }
)
"""Arguments of a call that are numbers, not tensors."""
_WIDE: Final = frozenset({"float16", "bfloat16", "float32"})
_NUMBERS_OF_TYPES: Final[Mapping[int, str]] = {
    type_to_type_id(getattr(ms, name)): name.rstrip("_")
    for name in ("bool_", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "bfloat16")
}
"""MindSpore's numbers of types, for arguments that are types."""
_WORDS: Final[Mapping[str, Sequence[str]]] = {"data_format": ("NCHW", "NHWC"), "reduction": ("sum", "mean", "none")}
"""Words that MindSpore records as numbers, by position."""
_REFUSALS: Final = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError)
"""Exceptions of MindSpore for arguments that a primitive does not take."""
_NO_ATTRIBUTES: Final = frozenset(
    {
        "dst_type",
        "is_backend_cast",
        "left_format",
        "right_format",
        "IsFeatureMapInputList",
        "IsFeatureMapOutput",
        "input_names",
        "output_names",
        "dyn_input_sizes",
        "side_effect_mem",
        "graph_shapes",
        "seen",
    }
)


@cache
def _class_of(op_type: str) -> Any:
    for module in (gen_ops_prim, operations, _grad_ops):
        found = getattr(module, op_type, None)
        if isinstance(found, type):
            return found
    return None


@cache
def _parameters(op_type: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names of the arguments of the call and of the constructor of a primitive; None if the call takes any number of arguments."""
    kind = _class_of(op_type)
    if kind is None:
        return None
    try:
        call, made = (inspect.signature(each).parameters.values() for each in (kind.__call__, kind.__init__))
    except (TypeError, ValueError):
        return None
    several = inspect.Parameter.VAR_POSITIONAL
    if any(each.kind is several for each in call):
        return None
    return tuple(each.name for each in list(call)[1:]), tuple(
        each.name for each in list(made)[1:] if each.kind is not several
    )


def argument_names(op_type: str) -> tuple[str, ...]:
    """The names of all arguments in the order of a graph: those of the call, followed by those of the constructor. Empty if unknown."""
    found = _parameters(op_type)
    return _written_names(op_type) if found is None else (*found[0], *found[1])


@cache
def _written_names(op_type: str) -> tuple[str, ...]:
    """The names of inputs that a primitive with any number of arguments sets itself. It must be made for this, so its own arguments get any value."""
    kind = _class_of(op_type)
    if kind is None:
        return ()
    needed = [each for each in inspect.signature(kind.__init__).parameters.values() if each.default is each.empty]
    try:
        primitive = kind(*[1 for _ in needed[1:]])
    except _REFUSALS:
        return ()
    return tuple(getattr(primitive, "attrs", {}).get("input_names") or ())


def places_of(arguments: Mapping[str, Any], slots: int) -> list[tuple[int, int]]:
    """For each input slot of compiled code, the position of its argument and, in a list of tensors, the position in the list, else -1."""
    sizes = arguments.get("dyn_input_sizes")
    places: list[tuple[int, int]] = []
    for size in sizes if isinstance(sizes, list) else ():
        number = places[-1][0] + 1 if places else 0
        places += [(number, place) for place in range(size)] if size >= 0 else [(number, -1)]
    while len(places) < slots:
        places.append((places[-1][0] + 1 if places else 0, -1))
    return places


class MindsporeReplayer(Replayer):
    """Runs operators of MindSpore on the CPU."""

    def draws(self, op: OpRecord) -> bool:
        return _DRAWS.match(op.op_type) is not None

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        _check(op, inputs)
        values = _as_read(op, values)
        by_numpy = _of_a_part if "part" in op.arguments else _BY_NUMPY.get(op.op_type)
        is_of_part = not _OF_A_PART.isdisjoint(op.arguments)
        if by_numpy is not None and (dtype != AS_RECORDED or is_of_part or op.op_type in _WITHOUT_KERNEL):
            return _run_by_numpy(by_numpy, op, inputs, values)
        missing = [record for slot, record in inputs.items() if slot not in values and 0 not in record.shape]
        if missing:
            raise CannotReplayError(f"the dump does not have the values of {missing[0].name}")
        try:
            return Replayed(_call_of(op, inputs, values, None if dtype == AS_RECORDED else dtype).run(), dtype)
        except _REFUSALS as error:
            if dtype == "float64":  # some kernels take only narrower types
                return self.run(op, inputs, values, dtype="float32")
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CannotReplayError(
                f"MindSpore {ms.__version__} does not run {op.kernel} on these inputs on the CPU: {reason}"
            ) from error

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        found = self.run(op, inputs, values, dtype=AS_RECORDED).outputs
        if not _OF_A_PART.isdisjoint(op.arguments) or op.op_type in _WITHOUT_KERNEL:
            raise CannotReplayError(
                f"cannot write a program that runs {op.kernel}: MindSpore has no primitive that runs with the recorded inputs"
            )
        values = _as_read(op, values)
        # numpy computes what MindSpore's kernels do not compute in float64.
        exact = "float32" if op.op_type in _BY_NUMPY else self.run(op, inputs, values, dtype="float64").dtype
        # The dump may have an output in the shape of its memory.
        recorded = {slot: record.numpy().reshape(found[slot].shape) for slot, record in outputs.items()}
        text, given = _written(_call_of(op, inputs, values, None), title)
        types = {slot: record.dtype for slot, record in outputs.items()}
        return script_with_distances(text, given, types, recorded, exact)


def _run_by_numpy(
    function: Callable[[_Given], dict[int, Array]],
    op: OpRecord,
    inputs: Mapping[int, TensorRecord],
    values: Mapping[int, Array],
) -> Replayed:
    try:
        with np.errstate(all="ignore"):  # like a kernel
            return Replayed(function(_Given(op, inputs, values)), "float64")
    except _REFUSALS as error:
        raise CannotReplayError(f"the dump has other arguments of {op.op_name} than its type needs: {error}") from error


REPLAYER: Final = MindsporeReplayer()


def _check(op: OpRecord, inputs: Mapping[int, TensorRecord]) -> None:
    """Raises CannotReplayError if the operator draws random numbers, or wrote its input before MindSpore dumped it."""
    if REPLAYER.draws(op):
        raise CannotReplayError(
            f"{op.kernel} draws random numbers, and dumps do not contain the state of the generator"
        )
    if op.op_type in _IN_PLACE and op.graph_id != PYNATIVE and 0 in inputs and inputs[0].payload is not None:
        raise CannotReplayError(
            f"MindSpore dumps {inputs[0].name} after {op.op_name} wrote it, so its value before is not in the dump"
        )


def _as_read(op: OpRecord, values: Mapping[int, Array]) -> dict[int, Array]:
    """The values in the shapes that the operator reads."""
    shapes = graph_shapes(op, "input")
    return {
        slot: value.reshape(shapes[slot]) if slot in shapes and math.prod(shapes[slot]) == value.size else value
        for slot, value in values.items()
    }


class _Given:
    """The arguments of an operator by name: arrays and JSON values."""

    def __init__(self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array]) -> None:
        self._op = op
        self.names = argument_names(op.op_type) or tuple(op.arguments.get("input_names") or ())
        self.by_place: dict[int, Any] = {}
        """By the position of the argument; a list of tensors is a list of slots."""
        taken = self._take_tensors(inputs, values)
        for name, value in op.arguments.items():
            place = int(name) if name.isdecimal() else self.names.index(name) if name in self.names else -1
            if place >= 0 and place not in taken:
                self.by_place[place] = _decoded(value)

    def _take_tensors(self, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array]) -> set[int]:
        is_compiled = self._op.graph_id != PYNATIVE
        places = places_of(self._op.arguments, max(inputs, default=-1) + 1) if is_compiled else []
        for slot, record in sorted(inputs.items()):
            name, bracket, _ = record.argument.partition("[")
            if is_compiled:
                place, in_list = places[slot]
                is_listed = in_list >= 0
            else:
                same = [each for each, other in inputs.items() if other.argument.partition("[")[0] == name]
                place = self.names.index(name) if name in self.names else slot
                is_listed = bool(bracket) or (bool(name) and len(same) > 1)
            if slot not in values and 0 not in record.shape:
                continue
            value = _Tensor(values.get(slot, np.zeros(record.shape)), record)
            if is_listed:
                self.by_place.setdefault(place, []).append(value)
            else:
                self.by_place[place] = value
        return set(self.by_place)

    def get(self, name: str, default: Any = None) -> Any:
        """An argument: an array in float64 if it has floats, or a JSON value."""
        value = self.by_place.get(self.names.index(name)) if name in self.names else self._op.arguments.get(name)
        if value is None:
            return default
        return value.wide if isinstance(value, _Tensor) else value

    def at(self, place: int) -> Any:
        """The array of an input, in float64 if it has floats. Raises CannotReplayError if the dump lacks it."""
        value = self.by_place.get(place)
        if not isinstance(value, _Tensor):
            raise CannotReplayError(f"the dump does not have input {place} of {self._op.op_name}")
        return value.wide


class _Tensor:
    """A recorded tensor with other values."""

    def __init__(self, values: Array, record: TensorRecord) -> None:
        self.values, self.record = values, record

    @property
    def wide(self) -> Array:
        return self.values.astype(np.float64) if self.values.dtype.kind == "f" else self.values

    @property
    def is_constant(self) -> bool:
        return self.record.source.startswith(CONSTANT_PREFIX)

    def plain(self) -> Any:
        """The elements as a number or a tuple."""
        found = self.values.tolist()
        return tuple(found) if isinstance(found, list) else found

    def tensor(self, floating: str | None) -> ms.Tensor:
        dtype = self.record.dtype
        if floating is not None and (dtype in _WIDE or dtype == "float64"):
            return ms.Tensor(np.ascontiguousarray(self.values, floating).reshape(self.values.shape))
        if dtype == "bfloat16":
            return ms.Tensor(np.ascontiguousarray(self.values, np.float32)).astype(ms.bfloat16)
        if floating is not None and dtype.startswith("complex"):
            return ms.Tensor(np.asarray(self.values, np.complex128))
        return ms.Tensor(np.ascontiguousarray(self.values, dtype).reshape(self.values.shape))


def _decoded(value: Any) -> Any:
    if isinstance(value, Mapping) and "float" in value:
        return float(value["float"])
    return tuple(_decoded(each) for each in value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _PrimitiveCall:
    """A primitive and the arguments of its call. `kind` is its class; None for a primitive that has only a name and attributes."""

    kind: Any
    name: str
    options: Mapping[str, Any]
    """Arguments of the constructor."""
    attributes: Mapping[str, Any]
    arguments: Sequence[Any]

    def run(self) -> dict[int, Array]:
        primitive = ms.ops.Primitive(self.name) if self.kind is None else self.kind(**self.options)
        for name, value in self.attributes.items():
            primitive.add_prim_attr(name, value)
        return {slot: _array(each) for slot, each in enumerate(_flat(primitive(*self.arguments)))}


def _call_of(
    op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], floating: str | None
) -> _PrimitiveCall:
    given, known = _Given(op, inputs, values), _parameters(op.op_type)
    return _from_attributes(op, given, floating) if known is None else _from_definition(op, given, known, floating)


def _from_definition(
    op: OpRecord, given: _Given, known: tuple[tuple[str, ...], tuple[str, ...]], floating: str | None
) -> _PrimitiveCall:
    """A primitive made as its class defines, and the arguments of the call."""
    call, made = known
    args, options = (
        [_argument(op, given, place, floating, is_plain=place >= len(call)) for place in places]
        for places in (range(len(call)), range(len(call), len(call) + len(made)))
    )
    while args and args[-1] is _LEFT_OUT:
        args.pop()
    return _PrimitiveCall(
        _class_of(op.op_type),
        op.op_type,
        {name: value for name, value in zip(made, options, strict=True) if value is not _LEFT_OUT},
        {
            name: _decoded(value)
            for name, value in op.arguments.items()
            if name not in given.names and name not in _NO_ATTRIBUTES and _is_attribute(name, value)
        },
        [None if each is _LEFT_OUT else each for each in args],
    )


_LEFT_OUT: Final = object()


def _is_attribute(name: str, value: Any) -> bool:
    return not name.isdecimal() and isinstance(value, bool | int | float | str | list)


def _argument(op: OpRecord, given: _Given, place: int, floating: str | None, *, is_plain: bool) -> Any:
    """The argument at this position. `is_plain`: it is not a tensor."""
    value, name = given.by_place.get(place, _LEFT_OUT), given.names[place]
    is_plain = is_plain or name in _PLAIN
    if isinstance(value, list):
        return tuple(each.tensor(floating) for each in value)
    if isinstance(value, _Tensor):
        is_number = is_plain and value.is_constant and value.values.ndim <= 1
        return value.plain() if is_number else value.tensor(floating)
    if name == "dtype" and value is not _LEFT_OUT:
        return _type_of(value, floating)
    if name in _WORDS and isinstance(value, int):
        return _WORDS[name][value]
    if is_plain or op.graph_id == PYNATIVE or not isinstance(value, bool | int | float | tuple):
        return value
    return ms.Tensor(np.asarray(value, _first_dtype(given, floating, value)))  # compiled code passes it as a tensor


def _first_dtype(given: _Given, floating: str | None, value: Any) -> Any:
    """The type of a number that compiled code passed as a tensor: that of the first tensor of its kind."""
    if isinstance(value, bool):
        return np.bool_
    for each in given.by_place.values():
        kind = each.record.dtype if isinstance(each, _Tensor) else ""
        if kind in _WIDE and floating is not None:
            return floating
        if kind and kind != "bool" and not (isinstance(value, float) and "float" not in kind):
            return np.float32 if kind == "bfloat16" else kind
    return np.float32 if isinstance(value, float) else np.int64


def _type_of(value: Any, floating: str | None) -> Any:
    """A type of MindSpore for its number or its name. Floats become `floating`, if given."""
    name = _NUMBERS_OF_TYPES.get(value, "") if isinstance(value, int) else str(value).rpartition(".")[2].lower()
    if name.startswith(("float", "bfloat")) and floating is not None:
        name = floating
    return getattr(ms, {"bool": "bool_"}.get(name, name), value)


def _from_attributes(op: OpRecord, given: _Given, floating: str | None) -> _PrimitiveCall:
    """A primitive with all recorded attributes, and its inputs."""
    if _class_of(op.op_type) is None:
        raise AttributeError(f"it has no primitive {op.op_type}")
    attributes = {
        name: list(value) if name in ("input_names", "output_names") else _decoded(value)
        for name, value in op.arguments.items()
        if name not in ("graph_shapes", "seen") and _is_attribute(name, value)
    }
    args: list[Any] = []
    for place in range(max(given.by_place, default=-1) + 1):
        value = given.by_place.get(place)
        if isinstance(value, list):
            args.append(tuple(each.tensor(floating) for each in value))
        else:
            args.append(value.tensor(floating) if isinstance(value, _Tensor) else value)
            if place < len(given.names):
                args[-1] = _as_tensor(given, floating, args[-1])
            elif isinstance(value, str) and value in _WORDS["data_format"]:
                args[-1] = _WORDS["data_format"].index(value)
    return _PrimitiveCall(None, op.op_type, {}, attributes, args)


def _as_tensor(given: _Given, floating: str | None, value: Any) -> Any:
    """A number or several as a tensor: such a primitive takes nothing else."""
    if isinstance(value, bool | float):
        return ms.Tensor(np.asarray(value, _first_dtype(given, floating, value)))
    is_shape = isinstance(value, tuple) and all(isinstance(each, int) for each in value)
    if is_shape or isinstance(value, int):
        return ms.Tensor(np.asarray(value, np.int64 if is_shape else np.int32))
    return value


def _flat(results: Any) -> Sequence[Any]:
    if isinstance(results, tuple | list):
        return [each for result in results for each in _flat(result)]
    return [results]


def _array(result: Any) -> Array:
    if not isinstance(result, ms.Tensor):
        return np.asarray(result)
    found: Array = (result.astype(ms.float32) if result.dtype == ms.bfloat16 else result).asnumpy()
    return found


# Writes a program that runs one recorded operator again with only MindSpore and numpy.

_SCRIPT: Final = '''\
"""{title}"""
import mindspore as ms
import numpy as np
{imports}
with np.load(__file__.removesuffix(".py") + ".npz") as file:
    data = dict(file)


def run(floating):
    """The outputs, with all floats in the type `floating`; None keeps the recorded types."""
    def wanted(name):
        return getattr(ms, name if floating is None or "float" not in name else floating)

    x = [ms.Tensor(data[f"input_{{number}}"]).astype(wanted(name)) for number, name in enumerate({types})]
    primitive = {primitive}
    for name, value in {attributes}.items():
        primitive.add_prim_attr(name, value)
    found = primitive({arguments})
    return [each.float().asnumpy() if each.dtype == ms.bfloat16 else each.asnumpy() for each in (found if isinstance(found, tuple) else [found])]

'''


def _written(call: _PrimitiveCall, title: str) -> tuple[str, dict[int, Array]]:
    """The text of a program up to its function `run`, and the inputs that it reads."""
    tensors: list[ms.Tensor] = []
    arguments = ", ".join(_text(each, tensors) for each in call.arguments)
    options = ", ".join(f"{name}={_text(value, tensors)}" for name, value in call.options.items())
    module = "" if call.kind is None else call.kind.__module__
    text = _SCRIPT.format(
        title=title,
        imports=f"import {module}\n" if module else "",
        types=[_name_of(each.dtype) for each in tensors],
        primitive=f"{module}.{call.kind.__name__}({options})" if module else f"ms.ops.Primitive({call.name!r})",
        attributes=f"{{{', '.join(f'{name!r}: {_text(value, tensors)}' for name, value in call.attributes.items())}}}",
        arguments=arguments,
    )
    return text, dict(enumerate(map(_array, tensors)))


def _text(value: Any, tensors: list[ms.Tensor]) -> str:
    """An argument as text of Python. Tensors are added to `tensors`."""

    def special(value: Any) -> str | None:
        if isinstance(value, ms.Tensor):
            tensors.append(value)
            return f"x[{len(tensors) - 1}]"
        name = _name_of(value)
        return None if name is None else f"wanted({name!r})"

    return as_python(value, special)


def _name_of(dtype: Any) -> str | None:
    """The name of an element type in MindSpore; None for other values."""
    found = str(dtype).lower()
    name = {"bool": "bool_"}.get(found, found)
    return name if not isinstance(dtype, str) and getattr(ms, name, _LEFT_OUT) is dtype else None


# Operators without a kernel for float64, or with one that computes parts in float32, in numpy.


def _layer_norm(given: _Given) -> dict[int, Array]:
    x, gamma, beta = (given.at(place) for place in range(3))
    axes = tuple(range(int(given.get("begin_norm_axis", 1)) % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    scale = 1 / np.sqrt(variance + given.get("epsilon", 1e-7))
    return {0: (x - mean) * scale * gamma + beta, 1: mean, 2: variance}


def _layer_norm_grad(given: _Given) -> dict[int, Array]:
    x, dout, variance, mean, gamma = (given.at(place) for place in range(5))
    scale = 1 / np.sqrt(variance + given.get("epsilon", 1e-7))
    first = int(given.get("begin_norm_axis", 1)) % x.ndim
    axes, outer = tuple(range(first, x.ndim)), tuple(range(int(given.get("begin_params_axis", 1)) % x.ndim))
    normal, scaled = (x - mean) * scale, dout * gamma
    dx = scale * (scaled - scaled.mean(axes, keepdims=True) - normal * (scaled * normal).mean(axes, keepdims=True))
    return {0: dx, 1: (dout * normal).sum(outer), 2: dout.sum(outer)}


def _softmax_backward(given: _Given) -> dict[int, Array]:
    gradient, out = given.at(0), given.at(1)
    return {0: out * (gradient - (gradient * out).sum(int(given.get("dim", -1)), keepdims=True))}


def _softmax(given: _Given) -> dict[int, Array]:
    return {0: np.exp(_log_softmax(given)[0])}


def _log_softmax(given: _Given) -> dict[int, Array]:
    axes = tuple(map(int, np.atleast_1d(given.get("axis", -1))))
    below = given.at(0) - given.at(0).max(axes, keepdims=True)
    return {0: below - np.log(np.exp(below).sum(axes, keepdims=True))}


def _log_softmax_grad(given: _Given) -> dict[int, Array]:
    logs, gradient = given.at(0), given.at(1)
    return {0: gradient - np.exp(logs) * gradient.sum(int(given.get("axis", -1)), keepdims=True)}


def _gelu_grad(given: _Given) -> dict[int, Array]:
    gradient, x = given.at(0), given.at(1)
    root = math.sqrt(2 / math.pi)
    bent = np.tanh(root * (x + 0.044715 * x**3))
    slope = root * (1 + 3 * 0.044715 * x**2) * (1 - bent**2)
    return {0: gradient * 0.5 * (1 + bent + x * slope)}


def _softplus_grad(given: _Given) -> dict[int, Array]:
    return {0: given.at(0) * np.exp(-np.logaddexp(0, -given.at(1)))}


def _segment_sum(given: _Given) -> dict[int, Array]:
    values, segments = given.at(0), np.asarray(given.get("segment_ids"))
    found = np.zeros((int(np.max(given.get("num_segments"))), *values.shape[segments.ndim :]), values.dtype)
    np.add.at(found, segments, values)
    return {0: found}


def _unstack(given: _Given) -> dict[int, Array]:
    parts = np.moveaxis(given.at(0), int(given.get("axis")), 0)
    return dict(enumerate(parts))


def _pad(given: _Given) -> dict[int, Array]:
    """Padding with a constant; what is padded by a negative number is cut off."""
    if given.get("mode", "constant") != "constant":
        raise CannotReplayError("only padding with a constant is computed in float64")
    values, paddings = given.at(0), np.asarray(given.get("paddings")).reshape(-1, 2)
    if not given.get("paddings_contiguous", True):
        raise CannotReplayError("paddings in another order are not computed in float64")
    around = [(0, 0)] * (values.ndim - len(paddings)) + [(int(low), int(high)) for low, high in paddings[::-1]]
    fill = np.asarray(given.get("constant_value", 0.0)).reshape(-1)[0]
    padded = np.pad(values, [(max(0, low), max(0, high)) for low, high in around], constant_values=fill)
    cut = (slice(max(0, -low), size - max(0, -high)) for (low, high), size in zip(around, padded.shape, strict=True))
    return {0: padded[tuple(cut)]}


def _batch_norm(given: _Given) -> dict[int, Array]:
    """The outputs 1 and 2 are left out: the kernel does not write them."""
    x, scale, offset = (given.at(place) for place in range(3))
    axes, shaped = _of_channels(x, given)
    if given.by_place.get(5, given.get("is_training")):
        mean, variance = x.mean(axes), x.var(axes)
        found = {3: mean, 4: variance}
    else:
        mean, variance, found = given.at(3), given.at(4), {}
    epsilon = given.by_place.get(6, given.get("epsilon", 1e-5))
    normal = (x - shaped(mean)) / np.sqrt(shaped(variance) + epsilon)
    return {0: normal * shaped(scale) + shaped(offset), **found}


def _batch_norm_grad(given: _Given) -> dict[int, Array]:
    gradient, x, scale, mean, variance = (given.at(place) for place in range(5))
    axes, shaped = _of_channels(x, given)
    inverse = 1 / np.sqrt(variance + given.get("epsilon", 1e-5))
    normal = (x - shaped(mean)) * shaped(inverse)
    of_scale, of_offset = (gradient * normal).sum(axes), gradient.sum(axes)
    of_input = gradient
    if given.get("is_training"):
        count = x.size // scale.size
        of_input = gradient - (shaped(of_offset) + normal * shaped(of_scale)) / count
    return {0: of_input * shaped(scale * inverse), 1: of_scale, 2: of_offset}


def _of_channels(x: Array, given: _Given) -> tuple[tuple[int, ...], Callable[[Array], Array]]:
    """The axes other than that of the channels, and a function that shapes numbers of channels like `x`."""
    channels = x.ndim - 1 if given.by_place.get(8, given.get("data_format")) in ("NHWC", 1) else 1
    shape = [size if axis == channels else 1 for axis, size in enumerate(x.shape)]
    return tuple(axis for axis in range(x.ndim) if axis != channels), lambda numbers: numbers.reshape(shape)


def _of_a_part(given: _Given) -> dict[int, Array]:
    """The gradient of a tensor of which the program took a part."""
    gradient, part = given.at(0), given.get("part")
    whole = np.zeros(part["of"], gradient.dtype)
    places = np.asarray(part["offset"])
    for size, step in zip(part["shape"], part["strides"], strict=True):
        places = places[..., None] + np.arange(size) * step
    np.put(whole, places, gradient)
    return {0: whole}


def _sgd(given: _Given) -> dict[int, Array]:
    weight, gradient, rate = given.at(0), given.at(1), given.at(2)
    momentum = float(given.at(4)) if 4 in given.by_place else 0.0
    gradient = gradient + float(given.get("weight_decay", 0.0)) * weight
    if momentum:
        before, is_first = given.at(3), given.at(5) > 0
        damped = (1.0 - float(given.get("dampening", 0.0))) * gradient
        moment = np.where(is_first, gradient, momentum * before + damped)
        gradient = gradient + momentum * moment if given.get("nesterov") else moment
    return {0: weight - rate * gradient}


def _momentum(given: _Given) -> dict[int, Array]:
    weight, rate, gradient, momentum = given.at(0), given.at(2), given.at(3), given.at(4)
    moment = momentum * given.at(1) + gradient * given.get("gradient_scale", 1.0)
    return {0: weight - rate * (gradient + momentum * moment if given.get("use_nesterov") else moment)}


def _adam(given: _Given) -> dict[int, Array]:
    weight, first, second, power1, power2, rate, beta1, beta2, epsilon, gradient = (
        given.at(place) for place in range(10)
    )
    first, second = beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient**2
    step = beta1 * first + (1 - beta1) * gradient if given.get("use_nesterov") else first
    scale = rate * np.sqrt(1 - power2) / (1 - power1)
    return {0: weight - scale * step / (np.sqrt(second) + epsilon), 1: first, 2: second}


_BY_NUMPY: Final[Mapping[str, Any]] = {
    "Adam": _adam,
    "ApplyMomentum": _momentum,
    "Assign": lambda given: {0: given.at(1)},
    "AssignAdd": lambda given: {0: given.at(0) + given.get("value")},
    "AssignSub": lambda given: {0: given.at(0) - given.get("value")},
    "BatchNorm": _batch_norm,
    "BatchNormGrad": _batch_norm_grad,
    "Contiguous": lambda given: {0: given.at(0)},
    "GeLUGrad": _gelu_grad,
    "LayerNorm": _layer_norm,
    "LayerNormGrad": _layer_norm_grad,
    "LogSoftmax": _log_softmax,
    "LogSoftmaxGrad": _log_softmax_grad,
    "PadV3": _pad,
    "SGD": _sgd,
    "Softmax": _softmax,
    "SoftmaxBackward": _softmax_backward,
    "Softplus": lambda given: {0: np.logaddexp(0, given.at(0))},
    "SoftplusGrad": _softplus_grad,
    "TensorMove": lambda given: {0: given.at(0)},
    "UnsortedSegmentSum": _segment_sum,
    "Unstack": _unstack,
}
_IN_PLACE: Final = frozenset({"Adam", "ApplyMomentum", "Assign", "AssignAdd", "AssignSub", "SGD"})
_OF_A_PART: Final = frozenset({"part", "segment_ids"})
"""Arguments by which the gradient of a part of a tensor is recorded, instead of the tensors that its kernel reads."""
_WITHOUT_KERNEL: Final = frozenset({*_IN_PLACE, "Contiguous", "SoftmaxBackward", "TensorMove"})
"""Types that are only computed in numpy: they write their input, or MindSpore has no primitive that runs on the CPU."""
