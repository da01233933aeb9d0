"""Runs recorded operators of JAX again: in float64 mostly with numpy, which compiles nothing, and otherwise through JAX's primitives."""

from __future__ import annotations

import ast
import importlib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Final

import jax
import numpy as np
import scipy.special  # type: ignore[import-untyped]  # JAX installs it, and its stubs are a package of their own
from jax import lax

from opdump.adapters.replay import AS_RECORDED, Array, Replayed, Replayer, Script, as_python, script_with_distances
from opdump.errors import CannotReplayError
from opdump.records import RUN_FACTS, OpRecord, TensorRecord

Parameters = Mapping[str, Any]
_LITERAL: Final = re.compile(r"x(\d+)")
_MISSING: Final = re.compile(r"'(\w+)'")
_MISSED: Final[dict[Any, set[str]]] = {}
"""The parameters that each primitive missed in dumps. JAX takes long to say so."""
_NARROW: Final = re.compile(r"(?:bfloat|float)\d")
_OF_TYPES: Final = frozenset({"dtype", "new_dtype", "preferred_element_type"})
"""Parameters that name an element type."""
_KEYS: Final = frozenset(
    {"random_bits", "random_split", "random_fold_in", "random_wrap", "random_unwrap", "random_seed"}
)


_MOVE: Final = "device_put"


class JaxReplayer(Replayer):
    """Runs `lax::` operators, which are single equations, and `jnp::` functions of several equations, on the CPU."""

    def draws(self, op: OpRecord) -> bool:
        return False  # the numbers follow from the key, which is an input

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        found = _Runner(dtype).run(op, _given(op, inputs, values, dtype))
        return Replayed(dict(enumerate(map(_plain, found))), dtype)

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        given = _given(op, inputs, values, AS_RECORDED)
        runner = _Runner(AS_RECORDED)
        runner.run(op, given)
        return _script_of(op, runner.operands(op, given), runner.calls, outputs, title)


REPLAYER: Final = JaxReplayer()


def _given(
    op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], dtype: str
) -> dict[int, Array]:
    """The inputs by slot; floats have the type `dtype`."""
    missing = inputs.keys() - values.keys() - {slot for slot, record in inputs.items() if 0 in record.shape}
    if missing:
        raise CannotReplayError(f"the dump does not have the values of input {min(missing)} of {op.op_name}")
    types = {slot: _type_in(record.dtype, dtype) for slot, record in inputs.items()}
    return {
        slot: np.asarray(values.get(slot, np.zeros(record.shape))).astype(types[slot]).reshape(record.shape)
        for slot, record in inputs.items()
    }


def _type_in(name: str, floating: str) -> Any:
    """The element type of a recorded tensor in a run whose floats have the type `floating`."""
    kind = jax.numpy.dtype(name)
    if floating == AS_RECORDED:
        return kind
    if kind.kind == "c":
        return np.complex128 if floating == "float64" else np.complex64
    return np.dtype(floating) if _NARROW.match(kind.name) else kind


def _plain(value: Any) -> Array:
    """The elements as a numpy array; floats that numpy lacks become float32."""
    found = np.asarray(value)
    return (
        found
        if found.dtype.isbuiltin == 1
        else found.astype(np.float32 if _NARROW.match(found.dtype.name) else np.int32)
    )


class _Runner:
    """Runs operators with floats of one type."""

    def __init__(self, floating: str) -> None:
        self._floating = floating
        self.calls: list[tuple[str, Parameters]] = []
        """The primitives that were run, with all their parameters."""

    def run(self, op: OpRecord, given: Mapping[int, Array]) -> Sequence[Any]:
        """The results of an operator. Raises CannotReplayError with the reason if it cannot be run."""
        try:
            with np.errstate(all="ignore"):
                operands = self.operands(op, given)
                if _is_function(op):
                    return self._body(op.arguments["body"], operands)
                return self.equation(op.kernel.partition("::")[2], [*operands.values()], _parameters_of(op))
        except CannotReplayError:
            raise
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            raise CannotReplayError(
                f"JAX {jax.__version__} does not run {op.kernel} on these inputs on the CPU: {type(error).__name__}: {text}"
            ) from error

    def operands(self, op: OpRecord, given: Mapping[int, Array]) -> dict[int, Array]:
        """The inputs, and the numbers of the program that the operator reads, in order."""
        name = op.kernel.partition("::")[2]
        literals = {
            int(found[1]): value
            for each, value in op.arguments.items()
            if (found := _LITERAL.fullmatch(each)) is not None
        }
        if _is_function(op):
            body = op.arguments.get("body")
            if body is None:
                raise CannotReplayError(f"the dump does not have the equations of {op.kernel}")
            types = [_type_in(each, self._floating) for each in body["types"]]
            return {**given, **{slot: self._literal(value, types[slot]) for slot, value in literals.items()}}
        count = 1 + max([-1, *given, *literals])
        if given.keys() | literals.keys() != set(range(count)):
            raise CannotReplayError(f"the dump does not have all operands of {op.op_name}")
        # A literal has the type of the other operands, of which the first of `select_n` chooses.
        kinds = [value.dtype for slot, value in sorted(given.items()) if slot or name != "select_n"]
        like = kinds[0] if kinds else None
        return {
            slot: given[slot] if slot in given else self._literal(literals[slot], _kind_of(name, slot, like))
            for slot in range(count)
        }

    def _literal(self, value: Any, kind: Any) -> Array:
        """A number of the program as an array; without a `kind`, of the type in which JAX takes it."""
        if kind is None:
            floating = "float32" if self._floating == AS_RECORDED else self._floating
            kind = bool if isinstance(value, bool) else np.int32 if isinstance(value, int) else floating
        return _elements(value).astype(kind)

    def _body(self, body: Mapping[str, Any], operands: Mapping[int, Array]) -> Sequence[Any]:
        known: dict[int, Any] = dict(operands)

        def read(atom: Any) -> Any:
            if isinstance(atom, int):
                return known[atom]
            return self._literal(atom["value"], _type_in(atom["dtype"], self._floating)).reshape(atom["shape"])

        for name, parameters, reads, writes in body["equations"]:
            known.update(zip(writes, self.equation(name, [*map(read, reads)], parameters), strict=True))
        return [*map(read, body["results"])]

    def equation(self, name: str, operands: Sequence[Any], parameters: Parameters) -> Sequence[Any]:
        """The results of one equation."""
        if self._floating != AS_RECORDED and (run := _NUMPY.get(name)) is not None:
            operands = [*map(np.asarray, operands)]
            found = run(operands, self._with_types(parameters))
            if found is not NotImplemented:
                return [self._narrowed(np.asarray(each)) for each in (found if isinstance(found, list) else [found])]
        decoded = self._decoded(parameters)
        if name == "bitcast_convert_type":
            # The bits of a wider type are others.
            if any(each.dtype.kind not in "iub" for each in operands):
                raise CannotReplayError(f"{name} of floats has no form in another type")
            decoded["new_dtype"] = np.dtype(_type_in(str(parameters["new_dtype"]), AS_RECORDED))
        with _wide():
            found = _bound(name, operands, decoded)
        self.calls.append((name, decoded))
        return found

    def _narrowed(self, found: Array) -> Array:
        """A result of numpy, which computes some functions of float32 in float64."""
        return found.astype(self._floating, copy=False) if found.dtype == np.float64 else found

    def _decoded(self, parameters: Parameters) -> dict[str, Any]:
        return self._with_types(
            {name: None if "sharding" in name else _decoded(value) for name, value in parameters.items()}
        )

    def _with_types(self, parameters: Parameters) -> dict[str, Any]:
        """The parameters, with the element types of this run."""
        types = {
            name: np.dtype(_type_in(str(value), self._floating))
            for name, value in parameters.items()
            if name in _OF_TYPES and value is not None
        }
        return {**parameters, **types}


def _is_function(op: OpRecord) -> bool:
    """Whether the operator is a function of several equations."""
    return op.kernel.startswith("jnp::")


def _parameters_of(op: OpRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in op.arguments.items()
        if name not in RUN_FACTS and _LITERAL.fullmatch(name) is None
    }


def _elements(value: Any) -> Array:
    """The recorded form of a number, or of several in a list. Raises CannotReplayError if it is text."""
    if isinstance(value, list):
        return np.asarray([*map(_elements, value)])
    if isinstance(value, str):
        raise CannotReplayError(f"the literal {value} is not a number")
    return np.asarray(float(value["float"]) if isinstance(value, Mapping) else value)


def _kind_of(name: str, slot: int, like: Any) -> Any:
    """The element type of a literal operand, if `like` is that of the other operands; None if it follows from the number."""
    first_index = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}.get(name)
    if (first_index is not None and slot >= first_index) or (name.startswith("scatter") and slot == 1):
        return np.int32
    return like


def _wide() -> AbstractContextManager[Any]:
    switch: Any = getattr(jax, "enable_x64", None)
    if not callable(switch):  # before JAX 0.8
        switch = importlib.import_module("jax.experimental").enable_x64
    context: AbstractContextManager[Any] = switch(True)
    return context


# JAX's own primitives, by name. Parameters were recorded as JSON, and some objects as text.


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if isinstance(value, Mapping) and value.keys() == {"float"}:
        return float(value["float"])
    if isinstance(value, str) and ("(" in value or "." in value or value.lstrip("-").isdigit()):
        try:
            return _evaluated(ast.parse(value, mode="eval").body)
        except (SyntaxError, ValueError, AttributeError, TypeError):
            return value
    return value


def _evaluated(node: ast.expr) -> Any:
    """An object from its text, such as `GatherScatterMode.CLIP`: a member or an object of a class of `lax`, or a literal."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made = getattr(lax, node.func.id)
        return made(
            *map(_evaluated, node.args), **{each.arg: _evaluated(each.value) for each in node.keywords if each.arg}
        )
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(getattr(lax, node.value.id), node.attr)
    return ast.literal_eval(node)


def _bound(name: str, operands: Sequence[Any], parameters: dict[str, Any]) -> Sequence[Any]:
    """The results of a primitive of JAX. Adds parameters that the dump does not have."""
    if name == _MOVE:
        return operands
    if name in _KEYS:
        return [_of_keys(name, operands, parameters)]
    if name.startswith("scatter"):
        return [_scattered(name, operands, parameters)]
    primitive = _primitive(name)
    if isinstance(parameters.get("precision"), str):
        parameters["precision"] = getattr(lax.Precision, str(parameters["precision"]))
    if isinstance(parameters.get("fft_type"), int) and name == "fft":
        parameters["fft_type"] = lax.FftType(parameters["fft_type"])
    if isinstance(parameters.get("rounding_method"), int):
        parameters["rounding_method"] = lax.RoundingMethod(parameters["rounding_method"])
    arrays = [jax.numpy.asarray(each, each.dtype) for each in operands]
    parameters.update({each: None for each in _MISSED.get(primitive, ()) if each not in parameters})
    found = _completed(primitive, arrays, parameters)
    return list(found) if primitive.multiple_results else [found]


def _completed(primitive: Any, arrays: Sequence[Any], parameters: dict[str, Any], missed: Sequence[str] = ()) -> Any:
    """The result of a primitive. Parameters that it misses were None, and become None again: those in `missed`, of which the primitive said so now."""
    try:
        found = primitive.bind(*arrays, **parameters)
    except (TypeError, KeyError) as error:
        text = str(error) if isinstance(error, KeyError) else str(error).partition("missing")[2]
        missing = [each for each in _MISSING.findall(text) if each not in parameters]
        if not missing:
            raise
        parameters.update(dict.fromkeys(missing))
        return _completed(primitive, arrays, parameters, [*missed, *missing])
    _MISSED.setdefault(primitive, set()).update(missed)
    return found


def _primitive(name: str) -> Any:
    module, attribute = _place_of(name)
    return getattr(module, attribute)


def _place_of(name: str) -> tuple[Any, str]:
    """The module and the attribute of a primitive."""
    stem = "add" if name == "add_any" else name.replace("-", "_")
    for module in (lax, lax.linalg):
        if hasattr(module, f"{stem}_p"):
            return module, f"{stem}_p"
    raise CannotReplayError(f"JAX {jax.__version__} has no primitive {name} in jax.lax")


def _scattered(name: str, operands: Sequence[Any], parameters: Parameters) -> Any:
    """A scatter through its public function, because dumps do not have the function that joins two updates."""
    return getattr(lax, name.replace("-", "_"))(*operands, **_of_scatter(parameters))


def _of_scatter(parameters: Parameters) -> dict[str, Any]:
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    return {name: parameters[name] for name in names if parameters.get(name) is not None}


def _of_keys(name: str, operands: Sequence[Any], parameters: Parameters) -> Any:
    """An operator on random keys, which are recorded as their data."""
    if name in ("random_wrap", "random_unwrap"):
        return operands[0]
    if name == "random_seed":
        kind = "rbg" if "rbg" in str(parameters.get("impl")) else "threefry2x32"
        return jax.random.key_data(jax.random.key(operands[0].item(), impl=kind))
    data = jax.numpy.asarray(operands[0], np.uint32)
    implementation = "threefry2x32" if data.shape[-1] == 2 else "rbg"
    keys = jax.random.wrap_key_data(data, impl=implementation)
    if name == "random_bits":
        return jax.random.bits(keys, parameters["shape"], np.dtype(f"uint{parameters['bit_width']}"))
    made = (
        jax.random.split(keys, parameters["shape"]) if name == "random_split" else jax.random.fold_in(keys, operands[1])
    )
    return jax.random.key_data(made)


# Writes a program that runs one recorded operator again with only JAX and numpy.

_SCRIPT: Final = '''\
"""{title}"""
import jax
import numpy as np
from jax import lax, numpy as jnp

jax.config.update("jax_enable_x64", True)
with np.load(__file__.removesuffix(".py") + ".npz") as file:
    data = dict(file)


def run(floating):
    """The outputs, with all floats in the type `floating`; None keeps the recorded types."""
    def wanted(name):
        dtype = jnp.dtype(name)
        if floating == "float64" and jnp.issubdtype(dtype, jnp.complexfloating):
            return jnp.dtype("complex128")
        return jnp.dtype(floating) if floating is not None and jnp.issubdtype(dtype, jnp.floating) else dtype

    x = {{slot: jnp.asarray(data[f"input_{{slot}}"]).astype(wanted(name)) for slot, name in {types}.items()}}
    {lines}
    return [{results}]

'''


def _script_of(
    op: OpRecord,
    operands: Mapping[int, Array],
    calls: Sequence[tuple[str, Parameters]],
    outputs: Mapping[int, TensorRecord],
    title: str,
) -> Script:
    count = 1 + max(outputs, default=0)
    if _is_function(op):
        body = op.arguments["body"]
        reads, writes = ([each[place] for each in body["equations"]] for place in (2, 3))
        results = body["results"]
    else:
        reads, results = [[*operands]], [len(operands) + place for place in range(count)]
        writes = [results]
    lines = [
        f"{', '.join(map(_operand, written))}{',' if _returns_list(name) else ''} = {_written_call(name, read, parameters)}"
        for (name, parameters), read, written in zip(calls, reads, writes, strict=True)
    ]
    text = _SCRIPT.format(
        title=title,
        types={slot: value.dtype.name for slot, value in operands.items()},
        lines="\n    ".join(lines),
        results=", ".join(map(_operand, results)),
    )
    given = {slot: _plain(value) for slot, value in operands.items()}
    types = {slot: record.dtype for slot, record in outputs.items()}
    return script_with_distances(text, given, types, {slot: record.numpy() for slot, record in outputs.items()})


def _returns_list(name: str) -> bool:
    return name == _MOVE or (
        not name.startswith("scatter") and name not in _KEYS and bool(_primitive(name).multiple_results)
    )


def _operand(atom: Any) -> str:
    """What an equation reads or writes, as text of Python."""
    if isinstance(atom, int):
        return f"x[{atom}]"
    return f"jnp.full({tuple(atom['shape'])}, {_text(_decoded(atom['value']))}, wanted({atom['dtype']!r}))"


def _written_call(name: str, reads: Sequence[Any], parameters: Parameters) -> str:
    if name == _MOVE:
        return f"[{', '.join(map(_operand, reads))}]"
    if name in _KEYS:
        raise CannotReplayError(f"cannot write a program that runs {name}: it computes random keys")
    if name.startswith("scatter"):
        function, given = f"lax.{name.replace('-', '_')}", _of_scatter(parameters)
    else:
        module, attribute = _place_of(name)
        function, given = f"{'lax' if module is lax else 'lax.linalg'}.{attribute}.bind", dict(parameters)
    texts = {key: _text(each) for key, each in given.items()}
    if name == "bitcast_convert_type":  # the bits of a wider type are others
        texts["new_dtype"] = f"jnp.dtype({given['new_dtype'].name!r})"
    return f"{function}({', '.join([*map(_operand, reads), *(f'{key}={text}' for key, text in texts.items())])})"


def _text(value: Any) -> str:
    """A parameter as text of Python."""
    return as_python(value, _text_of_jax)


def _text_of_jax(value: Any) -> str | None:
    name = f"lax.{type(value).__name__}"
    if isinstance(value, np.dtype):
        return f"wanted({value.name!r})"
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    if hasattr(value, "_asdict"):
        return f"{name}({', '.join(f'{key}={_text(each)}' for key, each in value._asdict().items())})"
    return None


# numpy's functions for the operators that programs use most. A function returns NotImplemented where JAX has to run the operator.


def _of_one(run: Callable[[Array], Any]) -> Callable[[Sequence[Array], Parameters], Any]:
    return lambda given, _: run(given[0])


def _of_two(run: Callable[[Array, Array], Any]) -> Callable[[Sequence[Array], Parameters], Any]:
    return lambda given, _: run(given[0], given[1])


def _of_floats(run: Callable[..., Any]) -> Callable[[Sequence[Array], Parameters], Any]:
    return lambda given, _: run(*given) if given[0].dtype.kind in "fc" else NotImplemented


def _reduced(run: Callable[..., Any]) -> Callable[[Sequence[Array], Parameters], Any]:
    def reduce(given: Sequence[Array], parameters: Parameters) -> Any:
        if parameters.get("out_sharding"):
            return NotImplemented
        return run(given[0], axis=tuple(parameters["axes"])).astype(given[0].dtype)

    return reduce


def _accumulated(run: Callable[..., Any]) -> Callable[[Sequence[Array], Parameters], Any]:
    def accumulate(given: Sequence[Array], parameters: Parameters) -> Any:
        axis = parameters["axis"]
        values = np.flip(given[0], axis) if parameters["reverse"] else given[0]
        found = run(values, axis=axis).astype(values.dtype)
        return np.flip(found, axis) if parameters["reverse"] else found

    return accumulate


def _converted(given: Sequence[Array], parameters: Parameters) -> Any:
    kind, value = parameters["new_dtype"], given[0]
    if value.dtype.kind in "fc" and kind.kind in "iu":
        return NotImplemented  # numbers out of range
    return value.astype(kind)


def _broadcast(given: Sequence[Array], parameters: Parameters) -> Any:
    if len(given) != 1:
        return NotImplemented
    shape = [*map(int, parameters["shape"])]
    inner = [1] * len(shape)
    for size, place in zip(given[0].shape, map(int, parameters["broadcast_dimensions"]), strict=True):
        inner[place] = size
    return np.broadcast_to(given[0].reshape(inner), shape)


def _reshaped(given: Sequence[Array], parameters: Parameters) -> Any:
    if parameters.get("dimensions") is not None or len(given) != 1:
        return NotImplemented
    return given[0].reshape([*map(int, parameters["new_sizes"])])


def _sliced(given: Sequence[Array], parameters: Parameters) -> Any:
    steps = parameters.get("strides") or [1] * given[0].ndim
    bounds = zip(parameters["start_indices"], parameters["limit_indices"], steps, strict=True)
    return given[0][tuple(slice(*map(int, each)) for each in bounds)]


def _padded(given: Sequence[Array], parameters: Parameters) -> Any:
    sides = [tuple(map(int, each)) for each in parameters["padding_config"]]
    if any(low < 0 or high < 0 for low, high, _ in sides) or 0 in given[0].shape:
        return NotImplemented
    sizes = [
        low + high + size + (size - 1) * between
        for (low, high, between), size in zip(sides, given[0].shape, strict=True)
    ]
    found = np.full(sizes, given[1], given[0].dtype)
    found[
        tuple(
            slice(low, low + (size - 1) * (between + 1) + 1, between + 1)
            for (low, _, between), size in zip(sides, given[0].shape, strict=True)
        )
    ] = given[0]
    return found


def _selected(given: Sequence[Array], _parameters: Parameters) -> Any:
    which, *cases = given
    if which.dtype.kind == "b" and len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(np.broadcast_to(which, cases[0].shape), cases) if len(cases) < 32 else NotImplemented


def _dotted(given: Sequence[Array], parameters: Parameters) -> Any:
    (ours, theirs), (batch, others) = parameters["dimension_numbers"]
    a, b = given
    if not {a.dtype.kind, b.dtype.kind} <= {"f", "c"}:
        return NotImplemented
    free_a = [axis for axis in range(a.ndim) if axis not in {*ours, *batch}]
    free_b = [axis for axis in range(b.ndim) if axis not in {*theirs, *others}]
    shape = [a.shape[axis] for axis in batch]
    rows, columns = [a.shape[axis] for axis in free_a], [b.shape[axis] for axis in free_b]
    depth = int(np.prod([a.shape[axis] for axis in ours], dtype=int))
    left = a.transpose([*batch, *free_a, *ours]).reshape([*shape, int(np.prod(rows, dtype=int)), depth])
    right = b.transpose([*others, *theirs, *free_b]).reshape([*shape, depth, int(np.prod(columns, dtype=int))])
    return (left @ right).reshape([*shape, *rows, *columns])


def _numbered(_given: Sequence[Array], parameters: Parameters) -> Any:
    shape, axis = [*map(int, parameters["shape"])], int(parameters["dimension"])
    steps = np.arange(shape[axis]).astype(parameters["dtype"])
    return np.broadcast_to(steps.reshape([-1 if place == axis else 1 for place in range(len(shape))]), shape)


def _split(given: Sequence[Array], parameters: Parameters) -> Any:
    ends = np.cumsum([*map(int, parameters["sizes"])])[:-1]
    return list(np.split(given[0], ends, parameters["axis"]))


def _power(given: Sequence[Array], parameters: Parameters) -> Any:
    return given[0] ** int(parameters["y"]) if given[0].dtype.kind in "fc" else NotImplemented


def _clamped(given: Sequence[Array], _parameters: Parameters) -> Any:
    low, value, high = given
    return np.minimum(np.maximum(value, low), high)


_NUMPY_OF_TWO: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")},
    "max": np.maximum,
    "min": np.minimum,
    "atan2": np.arctan2,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "pow": np.power,
    "div": np.true_divide,
    "rem": np.fmod,
}
_WITH_FLOATS: Final = frozenset({"pow", "div", "rem", "atan2"})
_NUMPY: Final[Mapping[str, Callable[[Sequence[Array], Parameters], Any]]] = {
    **{name: (_of_floats if name in _WITH_FLOATS else _of_two)(run) for name, run in _NUMPY_OF_TWO.items()},
    "add_any": _of_two(operator.add),
    **{
        name: _of_floats(getattr(np, numpy_name))
        for name, numpy_name in {
            **{
                each: each
                for each in (
                    "exp",
                    "exp2",
                    "log",
                    "log1p",
                    "expm1",
                    "sqrt",
                    "sin",
                    "cos",
                    "tan",
                    "sinh",
                    "cosh",
                    "tanh",
                )
            },
            "asin": "arcsin",
            "acos": "arccos",
            "atan": "arctan",
            "floor": "floor",
            "ceil": "ceil",
            "cbrt": "cbrt",
        }.items()
    },
    **{name: _of_floats(getattr(scipy.special, name)) for name in ("erf", "erfc", "digamma")},
    "logistic": _of_floats(scipy.special.expit),
    "erf_inv": _of_floats(scipy.special.erfinv),
    "lgamma": _of_floats(scipy.special.gammaln),
    "rsqrt": _of_floats(lambda value: 1 / np.sqrt(value)),
    "neg": _of_one(operator.neg),
    "not": _of_one(operator.invert),
    "abs": _of_one(np.abs),
    "sign": _of_one(np.sign),
    "square": _of_one(np.square),
    "is_finite": _of_one(np.isfinite),
    "integer_pow": _power,
    **{name: _of_one(lambda value: value) for name in ("stop_gradient", "copy", "copy_p", "optimization_barrier_")},
    "reduce_sum": _reduced(np.sum),
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_prod": _reduced(np.prod),
    "reduce_or": _reduced(np.any),
    "reduce_and": _reduced(np.all),
    "cumsum": _accumulated(np.cumsum),
    "cumprod": _accumulated(np.cumprod),
    "cummax": _accumulated(np.maximum.accumulate),
    "cummin": _accumulated(np.minimum.accumulate),
    "convert_element_type": _converted,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "transpose": lambda given, parameters: given[0].transpose(parameters["permutation"]),
    "squeeze": lambda given, parameters: given[0].squeeze(tuple(parameters["dimensions"])),
    "expand_dims": lambda given, parameters: np.expand_dims(given[0], tuple(parameters["dimensions"])),
    "rev": lambda given, parameters: np.flip(given[0], tuple(parameters["dimensions"])),
    "concatenate": lambda given, parameters: np.concatenate(given, parameters["dimension"]),
    "slice": _sliced,
    "pad": _padded,
    "select_n": _selected,
    "clamp": _clamped,
    "dot_general": _dotted,
    "iota": _numbered,
    "split": _split,
}
