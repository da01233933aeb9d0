"""Converts errors to return codes: inside `acl`, a mistake raises an exception; the caller gets a number and a message.

`acl.get_recent_err_msg()` returns the message of the last failed call; the logger `opdump.acl` logs every one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar

import numpy as np

from opdump.configs.acl_keys import AclConfigError
from opdump.errors import ConfigError, OpdumpError
from opdump.onnx.recording import adapter_module
from opdump.plan.unmatched_names import with_nearest

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.model_file import ModelFile

# Return codes, with the names of the public headers; docs/acl.md#return-codes lists when each is returned.


class Code(IntEnum):
    """The return code of a call."""

    SUCCESS = 0
    INVALID_PARAM = 100000
    UNINITIALIZE = 100001
    REPEAT_INITIALIZE = 100002
    INVALID_FILE = 100003
    PARSE_FILE = 100006
    INVALID_DUMP_CONFIG = 100009
    INVALID_MODEL_ID = 100011
    MODEL_INPUT_NOT_MATCH = 100017
    MODEL_OUTPUT_NOT_MATCH = 100018
    OP_INPUT_NOT_MATCH = 100021
    OP_OUTPUT_NOT_MATCH = 100022
    OP_NOT_FOUND = 100024
    UNSUPPORTED_DATA_TYPE = 100026
    REPEAT_FINALIZE = 100037
    DUMP_NOT_RUN = 100045
    INVALID_DEVICE_ID = 107001
    CONTEXT_NULL = 107002
    EVENT_TIMESTAMP_INVALID = 107006
    EVENT_TIMESTAMP_REVERSAL = 107007
    STREAM_SUBSCRIBE = 107011
    THREAD_SUBSCRIBE = 107012
    STREAM_NO_CALLBACK = 107015
    DYNAMIC_INPUT_LENGTH = 145012
    DYNAMIC_BATCH_SIZE = 145013
    INTERNAL_ERROR = 500000
    FAILURE = 500001
    REPORT_TIMEOUT = 507012
    STREAM_SYNC_TIMEOUT = 507046


# Errors of calls.

LOG: Final = logging.getLogger("opdump.acl")

Given = ParamSpec("Given")
Value = TypeVar("Value")
Result = TypeVar("Result")


class CallError(Exception):
    """A call fails; `code` is its return value. `is_answer`: the code answers a query, and nothing is wrong."""

    def __init__(self, code: int, message: str, *, is_answer: bool = False) -> None:
        super().__init__(message)
        self.code = int(code)
        self.is_answer = is_answer


class Messages:
    """The messages of failed calls, until they are requested. Each thread has its own."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def keep(self, message: str) -> None:
        self._of_thread.last = message

    def take(self) -> str:
        """The last message of the calling thread; empty if none of its calls has failed since the last request."""
        message: str = getattr(self._of_thread, "last", "")
        self._of_thread.last = ""
        return message


MESSAGES: Final = Messages()


def code_of(error: Exception) -> int:
    """The return code of an error."""
    if isinstance(error, CallError):
        return error.code
    if isinstance(error, AclConfigError):
        return error.error_code
    return Code.INVALID_DUMP_CONFIG if isinstance(error, ConfigError) else Code.INTERNAL_ERROR


def _converting(
    function: Callable[Given, Value], answer: Callable[[Value], Result], failure: Callable[[int], Result]
) -> Callable[Given, Result]:
    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return answer(function(*args, **kwargs))
        except (CallError, OpdumpError) as error:
            return failure(_report(function, error))

    return call


def returns_code(function: Callable[Given, None]) -> Callable[Given, int]:
    """Convert a function that raises to a call that returns 0 or an error code."""
    return _converting(function, lambda _: Code.SUCCESS.value, lambda code: code)


def returns_value(nothing: Any) -> Callable[[Callable[Given, Value]], Callable[Given, tuple[Any, int]]]:
    """The same for a call that returns a value and the code: `nothing` is the value after a failure."""
    return lambda function: _converting(
        function, lambda value: (value, Code.SUCCESS.value), lambda code: (nothing, code)
    )


def returns_plain(nothing: Value) -> Callable[[Callable[Given, Value]], Callable[Given, Value]]:
    """The same for a call without a code: it returns `nothing` after a failure."""
    return lambda function: _converting(function, lambda value: value, lambda _: nothing)


def _report(function: Callable[..., object], error: Exception) -> int:
    """Keep the message, after the name of the call; a call whose result has another form has an underscore before its name."""
    name = function.__name__.lstrip("_")
    code = code_of(error)
    call = f"{function.__module__.removeprefix('opdump.')}.{name}"
    message = f"{call}: {error}" if isinstance(error, CallError) else str(error)
    MESSAGES.keep(message)
    level = logging.DEBUG if isinstance(error, CallError) and error.is_answer else logging.ERROR
    LOG.log(level, "%s returns %d: %s", name, code, message)
    return code


# Names of pyACL that are missing here: the reason, the alternative, or the nearest name.

_PAGE: Final = "docs/acl.md lists every call"
_IMAGES: Final = (
    "the units of a device that decode, resize and encode images and video (DVPP) are not simulated; use OpenCV, Pillow or numpy, and "
    "copy the array: acl.rt.memcpy(address, size, array.ctypes.data, array.nbytes, 1)"
)
_COMPILED: Final = (
    "operators are not compiled ahead; call acl.op.execute_v2, which makes the model of an operator when it runs"
)
_REASONS: Final[tuple[tuple[str, str], ...]] = (
    ("media", _IMAGES),
    ("himpi", _IMAGES),
    ("blas", "matrix products of the library are not simulated; call acl.op.execute_v2 with MatMul or Gemm of ONNX, or numpy.matmul"),
    ("prof", "times are those of the host, so profiling is not simulated; take the times of the whole program"),
    ("fv", "search for features is not simulated; use numpy"),
    ("tdt", "channels between host and device are not simulated; copy with acl.rt.memcpy"),
    ("mdl.*aipp*", "AIPP, the preprocessing inside a model, is not simulated; crop, scale and normalise with numpy before acl.rt.memcpy"),
    ("mdl.*_with_q", "queues are not simulated; call acl.mdl.load_from_file and acl.mdl.execute"),
    ("mdl.bundle_*", "bundles of models are not simulated; load each ONNX file with acl.mdl.load_from_file"),
    ("mdl.create_and_get_op_desc", "tasks of a device are not simulated; the files of the dump contain operators and shapes"),
    ("op.*compile*", _COMPILED),
    ("op.*handle*", _COMPILED),
    ("op.*cast*", "call acl.op.execute_v2 with Cast of ONNX"),
    ("op.*inference_shape*", "acl.op.execute_v2 writes the resulting shapes into the descriptions of the outputs"),
    ("rt.*exception*", 'failing operators are dumped by "dump_scene" in acl.json'),
    ("rt.*physical*", "memory of a device is that of the host; call acl.rt.malloc"),
    ("rt.*peer*", "there is one device"),
    ("rt.memcpy2d*", "copy each row with acl.rt.memcpy, or the array with numpy"),
    ("set_tensor_const", "a constant input is passed like any other input"),
)  # fmt: skip


def calls_of(module: str) -> list[str]:
    """The names of the calls in a module: its public functions."""
    functions = inspect.getmembers(sys.modules[module], inspect.isfunction)
    return [name for name, function in functions if function.__module__ == module and not name.startswith("_")]


def refuse(module: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module, `opdump.acl` or a submodule."""
    prefix = f"{module.removeprefix('opdump.acl').lstrip('.')}.".lstrip(".")

    def __getattr__(name: str) -> NoReturn:  # noqa: N807  it becomes the module's
        whole = f"{prefix}{name}"
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        for pattern, reason in _REASONS:
            if fnmatchcase(whole, pattern):
                raise AttributeError(f"acl.{whole} is not here: {reason}; {_PAGE}", name=name)
        text = with_nearest(f"acl.{whole} is not here", name, calls_of(module))
        raise AttributeError(f"{text}; {_PAGE}", name=name)

    return __getattr__


# Objects behind integer handles, the numbers of their types, and what is known of a model.

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

    def get(self, handle: Any, kind: type[Kind]) -> Kind:
        """The object of a handle. Raises CallError for a handle that was never created, was destroyed, or is of another kind."""
        found = self._objects.get(handle) if isinstance(handle, int) else None
        if not isinstance(found, kind):
            what = "nothing" if found is None else f"a {type(found).__name__}"
            raise CallError(
                Code.INVALID_PARAM, f"{handle!r} refers to {what}, expected a {kind.__name__} that still exists"
            )
        return found

    def has(self, handle: int, kind: type[object]) -> bool:
        return isinstance(self._objects.get(handle), kind)

    def remove(self, handle: int, kind: type[Kind]) -> Kind:
        found = self.get(handle, kind)
        del self._objects[handle]
        return found


# Converts the numbers of element types and formats in calls, which differ from those of dump files and of numpy.
#
# Source: the public headers (aclDataType, aclFormat); numpy's own numbers (`numpy.dtype.num`) for `acl.util`.

DTYPES: Final[Mapping[int, str]] = {
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
"""Type names of records by the number of aclDataType."""
NUMBERS: Final[Mapping[str, int]] = {name: number for number, name in DTYPES.items()}
UNDEFINED_TYPE: Final = -1
FORMAT_ND: Final = 2
FORMATS: Final = frozenset({-1, 0, 1, 2, 3, 4, 12, 16, 27, 29, 30, 32, 33, 35, 47})

_WITHOUT_ARRAY: Final = frozenset({"string", "int4", "float4_e2m1fn"})
_STORAGE: Final[Mapping[str, str]] = {
    "bfloat16": "uint16",
    "float8_e5m2": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e8m0fnu": "uint8",
}
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
    metadata: Mapping[str, str], inputs: Sequence[TensorInfo]
) -> tuple[tuple[TensorInfo, ...], Gears | None]:
    """The inputs as in the metadata, and the gears; None if there are none. Raises CallError for invalid metadata."""
    shaped, order = _shaped(metadata.get(_INPUT_SHAPE), inputs)
    kinds = [kind for kind in KINDS if metadata.get(kind)]
    if not kinds:
        return shaped, None
    if len(kinds) > 1:
        raise _wrong(f"the model's metadata has {' and '.join(kinds)}, but a model may have only one of them")
    kind = kinds[0]
    choices = _choices(kind, metadata[kind])
    unknown = [(place, axis) for place in order for axis, dim in enumerate(shaped[place].dims) if dim < 0]
    if not unknown:
        raise _wrong(f"the model's metadata has {kind}, but no input has a dimension of -1")
    shapes = tuple(_shapes(kind, choice, shaped, unknown) for choice in choices)
    largest = max(
        range(len(choices)),
        key=lambda gear: sum(size_of(info.dtype, dims) for info, dims in zip(shaped, shapes[gear], strict=True)),
    )
    return shaped, Gears(kind, choices, shapes, order, largest)


def _shaped(text: str | None, inputs: Sequence[TensorInfo]) -> tuple[tuple[TensorInfo, ...], tuple[int, ...]]:
    """The inputs with the shapes in the metadata, and their order."""
    found, order = list(inputs), []
    names = [info.name for info in inputs]
    for part in filter(None, (each.strip() for each in (text or "").split(";"))):
        name, _, shape = part.rpartition(":")
        name = name.strip().strip('"')
        if name not in names or names.index(name) in order:
            raise _wrong(f"input_shape: found {name!r}, expected each of {', '.join(names)} once")
        place = names.index(name)
        dims = _numbers(shape, least=-1, what="input_shape")
        known = inputs[place].dims
        if len(dims) != len(known) or any(dim not in (-1, given) for dim, given in zip(known, dims, strict=False)):
            raise _wrong(f"input_shape: found {list(dims)} for {name!r}, expected {list(known)}, where -1 is any size")
        found[place] = replace(inputs[place], dims=dims)
        order.append(place)
    return tuple(found), (*order, *(place for place in range(len(inputs)) if place not in order))


def _choices(kind: GearKind, text: str) -> tuple[tuple[int, ...], ...]:
    parts = (
        text.split(",") if kind == "dynamic_batch_size" else filter(None, (each.strip() for each in text.split(";")))
    )
    choices = tuple(_numbers(part, least=1, what=kind) for part in parts)
    lengths = {len(choice) for choice in choices}
    if len(lengths) != 1 or (kind == "dynamic_image_size" and lengths != {2}):
        expected = "height,width;height,width" if kind == "dynamic_image_size" else "as many numbers in each gear"
        raise _wrong(f"{kind}: found {text!r}, expected {expected}")
    return choices


def _shapes(
    kind: GearKind, choice: tuple[int, ...], inputs: Sequence[TensorInfo], unknown: Sequence[tuple[int, int]]
) -> Shapes:
    shapes = [list(info.dims) for info in inputs]
    if kind == "dynamic_dims" and len(choice) != len(unknown):
        raise _wrong(
            f"dynamic_dims: a gear has {len(choice)} numbers, but the inputs have {len(unknown)} dimensions of -1"
        )
    taken = [0] * len(inputs)
    for number, (place, axis) in enumerate(unknown):
        position = number if kind == "dynamic_dims" else taken[place] if kind == "dynamic_image_size" else 0
        if position >= len(choice) or (kind == "dynamic_batch_size" and taken[place]):
            raise _wrong(
                f"{kind}: {inputs[place].name!r} is {list(inputs[place].dims)}, expected {len(choice)} dimension(s) of -1; "
                'fix the others: "input_shape"'
            )
        shapes[place][axis] = choice[position]
        taken[place] += 1
    if kind == "dynamic_image_size" and any(count not in (0, 2) for count in taken):
        raise _wrong("dynamic_image_size: an input has one dimension of -1, expected height and width")
    return tuple(map(tuple, shapes))


def _numbers(text: str, *, least: int, what: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if text.strip())
    except ValueError as error:
        raise _wrong(f"{what}: found {text!r}, expected whole numbers separated by commas") from error
    if any(number < least for number in numbers) or (least > 0 and math.prod(numbers) == 0):
        raise _wrong(f"{what}: found {text!r}, expected numbers, {least} or more")
    return numbers


def _wrong(text: str) -> CallError:
    return CallError(Code.PARSE_FILE, f"{text}; docs/acl.md, shapes that change")


# The description of a model: its inputs and outputs, its gears, and the shapes of its outputs in each.


class ModelInfo:
    """Inputs and outputs of a model. A model with gears has the additional input that selects the gear, and its outputs have the
    largest shapes.

    `values` of ONNX Runtime are the inputs and outputs of a session. Raises CallError for invalid gears.
    """

    def __init__(self, model: ModelFile, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        known = adapter_module("tensors_of_run").dtype_and_dims
        metadata = {entry.key: entry.value for entry in model.proto.metadata_props}
        given = tuple(TensorInfo(value.name, *known(value)) for value in inputs)
        self.own_inputs: tuple[TensorInfo, ...]
        self.gears: Gears | None
        self.own_inputs, self.gears = with_gears(metadata, given)
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
