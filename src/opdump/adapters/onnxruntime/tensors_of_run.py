"""One run of a session: its answer and other values of it as host tensors, and the difference between two answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from opdump.adapters.host import BY_DTYPE, ElementType, HostRuntime, HostTensor, element_of_type

# Runs a session once: returns the runtime's answer unchanged, and other values of the same run as host tensors.

Tensors = dict[str, HostTensor | str]
"""Values by name; for a value that is not a tensor of numbers, only its type: `string`, `seq(tensor(float))`."""


def answer_and_tensors(
    session: onnxruntime.InferenceSession,
    answer_names: Sequence[str],
    value_names: Sequence[str],
    feeds: Mapping[str, Any],
    run_options: onnxruntime.RunOptions | None,
    *,
    answer_is_private: bool,
) -> tuple[list[Any], Tensors]:
    """The outputs `answer_names`, and the tensors among `value_names`, all from one run.

    With an IOBinding nothing is copied, and types that numpy lacks keep their bits. If ONNX Runtime cannot bind (text,
    sequences, maps, optionals), `run` returns the same values, except those whose type numpy lacks, which are omitted.
    `answer_is_private`: the answer shares no memory with the tensors, so its owner may write into it.
    """
    types = {output.name: output.type for output in session.get_outputs()}
    tensors: Tensors = {name: _type_alone(types.get(name, "")) for name in value_names}
    elements = ((name, element_of_type(types.get(name, ""))) for name in value_names)
    numbers = {name: element for name, element in elements if element is not None and element.bits > 0}
    found = None
    if all(element_of_type(types.get(name, "")) is not None for name in answer_names):
        found = _by_binding(session, answer_names, numbers, feeds, run_options)
    answer, made = found or _by_run(session, answer_names, numbers, feeds, run_options)
    if answer_is_private:
        answer = [
            value.copy() if name in numbers and isinstance(value, np.ndarray) else value
            for name, value in zip(answer_names, answer, strict=True)
        ]
    return answer, {**tensors, **made}


def _by_binding(
    session: onnxruntime.InferenceSession,
    answer_names: Sequence[str],
    numbers: Iterable[str],
    feeds: Mapping[str, Any],
    run_options: onnxruntime.RunOptions | None,
) -> tuple[list[Any], Tensors] | None:
    """The answer, and the tensors `numbers`. None if the runtime cannot bind an input or output; nothing has run then."""
    if not _may_bind(session, feeds):
        return None
    names = tuple(dict.fromkeys((*answer_names, *numbers)))
    binding = session.io_binding()
    try:
        for name, value in feeds.items():
            if isinstance(value, onnxruntime.OrtValue):
                binding.bind_ortvalue_input(name, value)
            else:
                binding.bind_cpu_input(name, value)
        for name in names:
            binding.bind_output(name)
    except Exception:  # noqa: BLE001  the runtime's errors have no class of their own; `run` raises the error, if there is one
        return None
    session.run_with_iobinding(binding, run_options)
    values = dict(zip(names, binding.get_outputs(), strict=True))
    answer = [values[name].numpy() for name in answer_names]
    return answer, {name: HostTensor.of_ort_value(values[name]) for name in numbers}


def _by_run(
    session: onnxruntime.InferenceSession,
    answer_names: Sequence[str],
    numbers: Mapping[str, ElementType],
    feeds: Mapping[str, Any],
    run_options: onnxruntime.RunOptions | None,
) -> tuple[list[Any], Tensors]:
    """The answer, and the tensors of `numbers` whose type numpy has."""
    # 8-bit floats are returned to numpy as uint8; bfloat16 and packed types cannot be returned.
    shown = {name: element for name, element in numbers.items() if element.known_to_numpy or element.bits == 8}
    names = list(dict.fromkeys((*answer_names, *shown)))
    results = dict(zip(names, session.run(names, feeds, run_options), strict=True))
    tensors: Tensors = {
        name: HostTensor.of_array(results[name], element, stays=True)
        for name, element in shown.items()
        if isinstance(results[name], np.ndarray)
    }
    return [results[name] for name in answer_names], tensors


def fed_tensors(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> Tensors:
    """The caller's inputs as tensors. The caller may write into them as soon as the run is over."""
    types = {value.name: value.type for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    left_out: Tensors = {value.name: _type_alone(value.type) for value in session.get_inputs()}  # it may be None
    return {**left_out, **{name: fed_tensor(value, types.get(name, "")) for name, value in feeds.items()}}


def fed_tensor(value: Any, type_text: str) -> HostTensor | str:
    """A value of the caller as a tensor; only the type of a value that is not a tensor."""
    element = element_of_type(type_text)
    if element is None or element.bits == 0 or value is None:
        return _type_alone(type_text)
    if isinstance(value, onnxruntime.OrtValue):
        if not value.is_tensor() or value.device_name() != "cpu":
            return _type_alone(type_text)
        tensor = HostTensor.of_ort_value(value)
        tensor.stays = False
        return tensor
    array = value if isinstance(value, np.ndarray) else np.asarray(value, element.storage)
    return HostTensor.of_array(array, element)


def feed_of(elements: npt.NDArray[Any], dtype: str) -> Any:
    """The array, or a value of the runtime with the same bits if numpy lacks the element type."""
    element = BY_DTYPE[dtype]
    if element.known_to_numpy:
        return elements
    contiguous = np.ascontiguousarray(elements).view(element.storage)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, element.number)


def dtype_and_dims(value: Any) -> tuple[str, tuple[int, ...]]:
    """Element type, as in records, and shape of an input or output of a session; -1 for an unknown dimension."""
    element = element_of_type(value.type)
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in value.shape or ())
    return (value.type if element is None else element.dtype), dims


def _type_alone(type_text: str) -> str:
    return type_text[7:-1] if type_text.startswith("tensor(") else type_text or "undefined"


def _may_bind(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> bool:
    # A binding knows no initialisers that inputs can override, and accepts only tensors, even for an optional input.
    inputs = {value.name: element_of_type(value.type) for value in session.get_inputs()}
    return feeds.keys() == inputs.keys() and all(
        inputs[name] is not None
        and (
            isinstance(value, onnxruntime.OrtValue) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufcV")
        )
        for name, value in feeds.items()
    )


# Measures the difference between two answers of a model.


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest absolute difference between corresponding elements of two answers.

    NaN equals NaN, and an infinity equals itself. The result is infinite for different kinds, shapes or types, for different text, and for
    NaN or an infinity that meets another number. Numbers are compared in float64. The result is 0 for answers without elements.
    """
    if len(one) != len(other):
        return math.inf
    return max((_difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two answers are equal bit for bit, including their kinds, types and shapes."""

    def are(kind: type | tuple[type, ...]) -> bool:
        return isinstance(one, kind) and isinstance(other, kind)

    if are(np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool((one == other).all() if one.dtype == object else one.tobytes() == other.tobytes())
    if are((list, tuple)):
        return len(one) == len(other) and all(same_bits(a, b) for a, b in zip(one, other, strict=True))
    if are(dict):
        return bool(list(one) == list(other) and same_bits(list(one.values()), list(other.values())))
    if are(float):
        return bool(np.float64(one).tobytes() == np.float64(other).tobytes())
    if type(one) is not type(other):
        return False
    if type(one).__name__ == "SparseTensor":
        return same_bits([_of_sparse(one)], [_of_sparse(other)])
    return bool(one == other)


def _of_sparse(tensor: Any) -> tuple[Any, ...]:
    return tensor.dense_shape(), tensor.values()


def _difference(one: Any, other: Any) -> float:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype.kind in "biufc":
        return _difference_of_arrays(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return largest_difference(one, other)
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return largest_difference(list(one.values()), list(other.values()))
    if isinstance(one, float) and isinstance(other, float):
        return _difference_of_arrays(np.float64(one).reshape(1), np.float64(other).reshape(1))
    return 0.0 if same_bits(one, other) else math.inf


def _difference_of_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    if one.dtype != other.dtype or one.shape != other.shape:
        return math.inf
    if one.size == 0:
        return 0.0
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(wide), other.astype(wide)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(equal, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(apart), math.inf, apart).max())


# The version of ONNX Runtime that runs the models.

RUNTIME: Final = HostRuntime("onnxruntime", onnxruntime.__version__, "CPU")
