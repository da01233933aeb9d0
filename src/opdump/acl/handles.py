"""Objects behind integer handles, the numbers of their types, and what is known of a model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from opdump.acl.failures import LOG, CallError, Code
from opdump.onnx.recording import adapter_module

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.model_file import ModelFile

# Data buffers, data sets, descriptions of models and tensors, streams, events, contexts.

_FIRST = 0x5A000000
_BETWEEN = 0x10

Kind = TypeVar("Kind")


@dataclass(slots=True)
class DataBuffer:
    """Memory of a tensor. If there is none, a run allocates it and `owner` keeps it."""

    address: int
    size: int


@dataclass(slots=True)
class TensorDesc:
    """Element type (number of aclDataType), shape and format of a tensor; -1 is an unknown dimension."""

    data_type: int
    dims: list[int]
    format: int
    name: str = ""


@dataclass(slots=True)
class Dataset:
    """Buffers of the inputs or outputs of a model, in its order, with the descriptions and the gear that were set for them."""

    buffers: list[int] = field(default_factory=list)
    descs: dict[int, int] = field(default_factory=dict)
    gear: tuple[int, int] | None = None
    """Number of the model, and of its gear."""


@dataclass(slots=True)
class ModelDesc:
    """The described model, None before `get_desc`; the model's number if it is a loaded one."""

    model_id: int | None = None
    info: ModelInfo | None = None


@dataclass(slots=True)
class LoadConfig:
    """The options for loading a model: values by the number of aclmdlConfigAttr."""

    values: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ExecConfig:
    """The options for running a model: values by the number of aclmdlExecConfigAttr."""

    values: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class OpAttr:
    """Attributes of a single operator."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """Work is executed synchronously, so a stream only waits for callbacks."""


@dataclass(slots=True)
class Event:
    """A point in a stream: nanoseconds of `time.perf_counter_ns`, None until it is recorded."""

    recorded: int | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """Belongs to a device."""

    device_id: int


class Handles:
    """Creates handles and looks up their objects."""

    def __init__(self) -> None:
        self._objects: dict[int, object] = {}
        # Several threads may request handles at the same time.
        self._numbers = itertools.count(_FIRST, _BETWEEN)

    def add(self, thing: object) -> int:
        handle = next(self._numbers)
        self._objects[handle] = thing
        return handle

    def get(self, handle: Any, kind: type[Kind], where: str) -> Kind:
        """The object of a handle. Raises CallError for a handle that was never created, was destroyed, or is of another kind."""
        found = self._objects.get(handle) if isinstance(handle, int) else None
        if not isinstance(found, kind):
            what = "nothing" if found is None else f"a {type(found).__name__}"
            raise CallError(
                Code.INVALID_PARAM,
                f"{where}: {handle!r} refers to {what}, expected a {kind.__name__} that still exists",
            )
        return found

    def has(self, handle: int, kind: type[object]) -> bool:
        return isinstance(self._objects.get(handle), kind)

    def remove(self, handle: int, kind: type[Kind], where: str) -> Kind:
        found = self.get(handle, kind, where)
        del self._objects[handle]
        return found


# Converts the numbers of element types and formats in calls, which differ from those of dump files and of numpy.
#
# Source: the public headers (aclDataType, aclFormat); numpy's own numbers (`numpy.dtype.num`) for `acl.util`.

DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "float32",
        1: "float16",
        2: "int8",
        3: "int32",
        4: "uint8",
        6: "int16",
        7: "uint16",
        8: "uint32",
        9: "int64",
        10: "uint64",
        11: "float64",
        12: "bool",
        13: "string",
        16: "complex64",
        17: "complex128",
        27: "bfloat16",
        29: "int4",
        35: "float8_e5m2",
        36: "float8_e4m3fn",
        37: "float8_e8m0fnu",
        40: "float4_e2m1fn",
    }
)
"""Type names of records by the number of aclDataType."""
NUMBERS: Final[Mapping[str, int]] = MappingProxyType({name: number for number, name in DTYPES.items()})
UNDEFINED_TYPE: Final = -1
FORMAT_ND: Final = 2
FORMATS: Final = frozenset({-1, 0, 1, 2, 3, 4, 12, 16, 27, 29, 30, 32, 33, 35, 47})

_WITHOUT_ARRAY: Final = frozenset({"string", "int4", "float4_e2m1fn"})
_STORAGE: Final[Mapping[str, str]] = MappingProxyType(
    {"bfloat16": "uint16", "float8_e5m2": "uint8", "float8_e4m3fn": "uint8", "float8_e8m0fnu": "uint8"}
)
# Every type of fixed size without objects; dates and long doubles are not element types of tensors.
_CODES_BY_NUMBER: Final[dict[int, str]] = {np.dtype(code).num: code for code in "?bBhHiIlLqQefdFD"}


def storage(dtype: str) -> np.dtype[Any] | None:
    """The numpy type for the raw bits of an element; None for text and for types packed into less than a byte."""
    return None if dtype in _WITHOUT_ARRAY else np.dtype(_STORAGE.get(dtype, dtype))


def numpy_type(number: int) -> np.dtype[Any] | None:
    """The numpy type of that number (`numpy.dtype.num`); None if tensors cannot have it."""
    code = _CODES_BY_NUMBER.get(number)
    return None if code is None else np.dtype(code)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output: name, element type as in records, and shape; -1 is an unknown dimension."""

    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def data_type(self) -> int:
        """Number of aclDataType."""
        return NUMBERS.get(self.dtype, UNDEFINED_TYPE)

    @property
    def least_size(self) -> int:
        """Number of bytes if every unknown dimension is 1."""
        return size_of(self.dtype, [1 if dim < 0 else dim for dim in self.dims])


def size_of(dtype: str, dims: Sequence[int]) -> int:
    """Number of bytes of a tensor; 0 for text."""
    kind = storage(dtype)
    if kind is None:
        return (math.prod(dims) + 1) // 2 if dtype != "string" else 0
    return math.prod(dims) * kind.itemsize


# The gears of a model: the alternative shapes that it was converted for. ATC takes them as options, and a model for a device
# contains them. An ONNX file has them as metadata, with the same names and syntax:
#
#     input_shape          x:1,3,-1,-1;mask:-1,5     the shapes of inputs; -1 changes with the gear
#     dynamic_batch_size   1,2,4,8                   one number per gear, for every -1
#     dynamic_image_size   416,416;832,832           height and width per gear, for the two -1 of an input
#     dynamic_dims         20,1;40,2                 one number per -1 for each gear, in the order of input_shape
#
# Such a model has one more input, after its own, which selects the gear of a run.

GearKind: TypeAlias = Literal["dynamic_batch_size", "dynamic_image_size", "dynamic_dims"]
Shapes: TypeAlias = "tuple[tuple[int, ...], ...]"

KINDS: Final[tuple[GearKind, ...]] = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
SELECTOR: Final = "ascend_mbatch_shape_data"
_INPUT_SHAPE: Final = "input_shape"


@dataclass(frozen=True, slots=True)
class Gears:
    """`choices` are the gears as in the metadata; `shapes` those of the inputs, in the order of the model, in each gear."""

    kind: GearKind
    choices: tuple[tuple[int, ...], ...]
    shapes: tuple[Shapes, ...]
    order: tuple[int, ...]
    """The inputs in the order of `input_shape`."""
    largest: int
    """The gear whose inputs have the most bytes."""

    @property
    def selector(self) -> TensorInfo:
        """The input that selects the gear of a run."""
        return TensorInfo(SELECTOR, "int32", (len(self.choices[0]),))

    def whole(self, gear: int) -> list[int]:
        """The concatenated shapes of all inputs, in the order of `input_shape`."""
        return [dim for place in self.order for dim in self.shapes[gear][place]]


def with_gears(
    metadata: Mapping[str, str], inputs: Sequence[TensorInfo], where: str
) -> tuple[tuple[TensorInfo, ...], Gears | None]:
    """The inputs as in the metadata, and the gears; None if there are none. Raises CallError for invalid metadata."""
    shaped, order = _shaped(metadata.get(_INPUT_SHAPE), inputs, where)
    kinds = [kind for kind in KINDS if metadata.get(kind)]
    if not kinds:
        return shaped, None
    if len(kinds) > 1:
        raise _wrong(where, f"the model's metadata has {' and '.join(kinds)}, but a model may have only one of them")
    kind = kinds[0]
    choices = _choices(kind, metadata[kind], where)
    unknown = [(place, axis) for place in order for axis, dim in enumerate(shaped[place].dims) if dim < 0]
    if not unknown:
        raise _wrong(where, f"the model's metadata has {kind}, but no input has a dimension of -1")
    shapes = tuple(_shapes(kind, choice, shaped, unknown, where) for choice in choices)
    largest = max(
        range(len(choices)),
        key=lambda gear: sum(size_of(info.dtype, dims) for info, dims in zip(shaped, shapes[gear], strict=True)),
    )
    return shaped, Gears(kind, choices, shapes, order, largest)


def _shaped(
    text: str | None, inputs: Sequence[TensorInfo], where: str
) -> tuple[tuple[TensorInfo, ...], tuple[int, ...]]:
    """The inputs with the shapes in the metadata, and their order."""
    found, order = list(inputs), []
    names = [info.name for info in inputs]
    for part in filter(None, (each.strip() for each in (text or "").split(";"))):
        name, _, shape = part.rpartition(":")
        name = name.strip().strip('"')
        if name not in names or names.index(name) in order:
            raise _wrong(where, f"input_shape: found {name!r}, expected each of {', '.join(names)} once")
        place = names.index(name)
        dims = _numbers(shape, least=-1, where=where, what="input_shape")
        known = inputs[place].dims
        if len(dims) != len(known) or any(dim not in (-1, given) for dim, given in zip(known, dims, strict=False)):
            raise _wrong(
                where, f"input_shape: found {list(dims)} for {name!r}, expected {list(known)}, where -1 is any size"
            )
        found[place] = replace(inputs[place], dims=dims)
        order.append(place)
    return tuple(found), (*order, *(place for place in range(len(inputs)) if place not in order))


def _choices(kind: GearKind, text: str, where: str) -> tuple[tuple[int, ...], ...]:
    parts = (
        text.split(",") if kind == "dynamic_batch_size" else filter(None, (each.strip() for each in text.split(";")))
    )
    choices = tuple(_numbers(part, least=1, where=where, what=kind) for part in parts)
    lengths = {len(choice) for choice in choices}
    if len(lengths) != 1 or (kind == "dynamic_image_size" and lengths != {2}):
        expected = "height,width;height,width" if kind == "dynamic_image_size" else "as many numbers in each gear"
        raise _wrong(where, f"{kind}: found {text!r}, expected {expected}")
    return choices


def _shapes(
    kind: GearKind,
    choice: tuple[int, ...],
    inputs: Sequence[TensorInfo],
    unknown: Sequence[tuple[int, int]],
    where: str,
) -> Shapes:
    shapes = [list(info.dims) for info in inputs]
    if kind == "dynamic_dims" and len(choice) != len(unknown):
        raise _wrong(
            where,
            f"dynamic_dims: a gear has {len(choice)} numbers, but the inputs have {len(unknown)} dimensions of -1",
        )
    taken = [0] * len(inputs)
    for number, (place, axis) in enumerate(unknown):
        position = number if kind == "dynamic_dims" else taken[place] if kind == "dynamic_image_size" else 0
        if position >= len(choice) or (kind == "dynamic_batch_size" and taken[place]):
            raise _wrong(
                where,
                f"{kind}: {inputs[place].name!r} is {list(inputs[place].dims)}, expected {len(choice)} dimension(s) of -1; "
                'fix the others: "input_shape"',
            )
        shapes[place][axis] = choice[position]
        taken[place] += 1
    if kind == "dynamic_image_size" and any(count not in (0, 2) for count in taken):
        raise _wrong(where, "dynamic_image_size: an input has one dimension of -1, expected height and width")
    return tuple(map(tuple, shapes))


def _numbers(text: str, *, least: int, where: str, what: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if text.strip())
    except ValueError as error:
        raise _wrong(where, f"{what}: found {text!r}, expected whole numbers separated by commas") from error
    if any(number < least for number in numbers) or (least > 0 and math.prod(numbers) == 0):
        raise _wrong(where, f"{what}: found {text!r}, expected numbers, {least} or more")
    return numbers


def _wrong(where: str, text: str) -> CallError:
    return CallError(Code.PARSE_FILE, f"{where}: {text}; docs/acl.md, shapes that change")


# The description of a model: its inputs and outputs, its gears, and the shapes of its outputs in each.


class ModelInfo:
    """Inputs and outputs of a model. A model with gears has the additional input that selects the gear, and its outputs have the
    largest shapes.

    `values` of ONNX Runtime are the inputs and outputs of a session. Raises CallError for invalid gears.
    """

    def __init__(self, model: ModelFile, inputs: Sequence[Any], outputs: Sequence[Any], where: str) -> None:
        known = adapter_module("tensors_of_run").dtype_and_dims
        metadata = {entry.key: entry.value for entry in model.proto.metadata_props}
        given = tuple(TensorInfo(value.name, *known(value)) for value in inputs)
        self.own_inputs: tuple[TensorInfo, ...]
        self.gears: Gears | None
        self.own_inputs, self.gears = with_gears(metadata, given, where)
        self._model = model
        self._open = tuple(TensorInfo(value.name, *known(value)) for value in outputs)
        self._shapes: dict[int, Shapes] = {}

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.own_inputs if self.gears is None else (*self.own_inputs, self.gears.selector)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        if self.gears is None:
            return self._open
        shapes = self.output_dims(self.gears.largest)
        return tuple(TensorInfo(info.name, info.dtype, dims) for info, dims in zip(self._open, shapes, strict=True))

    def output_dims(self, gear: int) -> Shapes:
        """The shapes of the outputs in a gear; -1 is known only after a run."""
        assert self.gears is not None
        found = self._shapes.get(gear)
        if found is None:
            names = [info.name for info in self.own_inputs]
            inferred = adapter_module("model_file").output_shapes(
                self._model, dict(zip(names, self.gears.shapes[gear], strict=True))
            )
            found = tuple(inferred.get(info.name, info.dims) for info in self._open)
            open_ones = [info.name for info, dims in zip(self._open, found, strict=True) if min(dims, default=0) < 0]
            if open_ones:
                LOG.warning(
                    "the shape of %s is known only after a run; then call acl.mdl.get_cur_output_dims",
                    ", ".join(open_ones),
                )
            self._shapes[gear] = found
        return found

    def size(self, side: str, index: int) -> int:
        """Bytes of an input or output in the largest gear; every unknown dimension counts as 1."""
        if side == "output":
            return self.outputs[index].least_size
        if self.gears is None or index == len(self.own_inputs):
            return self.inputs[index].least_size
        info = self.own_inputs[index]
        return max(TensorInfo(info.name, info.dtype, shapes[index]).least_size for shapes in self.gears.shapes)
