"""Runs recorded operators of TensorFlow again, on the CPU: in the recorded types, or with all floats in float64."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_registry

from opdump.adapters.replay import AS_RECORDED, Array, Replayed, Replayer, Script, as_python, script_with_distances
from opdump.adapters.tensorflow.graphs.operator_kinds import writes_variable
from opdump.errors import CannotReplayError
from opdump.records import OpRecord, TensorRecord

_DRAWS: Final = re.compile(
    r"(?!Stateless)(Random|Stateful|Truncated|Parameterized|Multinomial|RngReadAndSkip|RngSkip|NonDeterministicInts)"
)
_REFUSALS: Final = (tf.errors.OpError, TypeError, ValueError, KeyError, AttributeError, OverflowError)
_HAND_ON: Final = frozenset({"ReadVariableOp", "AssignVariableOp"})
"""They return, or store, one of their inputs unchanged."""


class TensorFlowReplayer(Replayer):
    """Runs operators of TensorFlow by their kernels.

    The value of a variable is the input in the slot of its handle. An operator that writes variables returns their new values: slot 0 is the first.
    """

    def draws(self, op: OpRecord) -> bool:
        return _DRAWS.match(op.op_type) is not None

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        if self.draws(op):
            raise CannotReplayError(
                f"{op.kernel} draws random numbers, and dumps do not contain the state of the generator"
            )
        given = _inputs_of(inputs, values)
        floating = None if dtype == AS_RECORDED else tf.dtypes.as_dtype(dtype)
        try:
            with eager_context.eager_mode(), tf.device("/CPU:0"):
                found = [_array(tensor) for tensor in _run(op, inputs, given, floating)]
        except _REFUSALS as error:
            if dtype == "float64":
                return self.run(op, inputs, values, dtype="float32")
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CannotReplayError(
                f"TensorFlow {tf.__version__} does not run {op.kernel} on these inputs on the CPU: {reason}"
            ) from error
        return Replayed(dict(enumerate(found)), dtype)

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        self.run(op, inputs, values, dtype=AS_RECORDED)
        exact = self.run(op, inputs, values, dtype="float64").dtype
        types = {slot: record.dtype for slot, record in outputs.items()}
        recorded = {slot: record.numpy() for slot, record in outputs.items()}
        return script_with_distances(*_written(op, inputs, values, title), types, recorded, exact)


REPLAYER: Final = TensorFlowReplayer()


def _inputs_of(inputs: Mapping[int, TensorRecord], values: Mapping[int, Array]) -> dict[int, Array]:
    """All inputs by slot, with the empty ones, which have no elements in a dump."""
    empty = {slot: np.zeros(record.shape, np.float64) for slot, record in inputs.items() if 0 in record.shape}
    missing = sorted(inputs.keys() - values.keys() - empty.keys())
    if missing:
        raise CannotReplayError(f"the dump does not have the values of {inputs[missing[0]].name}")
    return {**empty, **values}


def _run(op: OpRecord, inputs: Mapping[int, TensorRecord], given: Mapping[int, Array], floating: Any) -> list[Any]:
    """The outputs of an operator, or the new values of the variables that it writes."""
    op_def = _definition_of(op)
    tensors = {slot: _tensor(value, inputs[slot], floating) for slot, value in given.items()}
    if op.op_type in _HAND_ON:
        return [tensors[max(tensors)]]
    handles: list[Any] = []
    flat: list[Any] = []
    for slot, (argument, is_handle) in enumerate(_slots_of(op, op_def)):
        if slot not in tensors and argument.name in op.arguments:
            tensors[slot] = _size(op, argument)
        if slot not in tensors:
            raise CannotReplayError(f"the dump does not have input {slot} of {op.op_name}")
        if is_handle:
            handles.append(tf.Variable(tensors[slot], trainable=False))
            flat.append(handles[-1].handle)
        else:
            flat.append(tensors[slot])
    attributes = tuple(_attributes(op, op_def, floating))
    made = execute.quick_execute(op_def.name, _count_of_outputs(op, op_def), flat, attributes, eager_context.context())
    if writes_variable(op.op_type):
        return [each.read_value() for each in handles]
    return [] if made is None else list(made)


def _definition_of(op: OpRecord) -> Any:
    """The definition of an operator: for one that the runtime inserted, of its kernel. Raises CannotReplayError if there is none."""
    names = (op.op_type, str(op.arguments.get("executed_as", "")))
    found = next((each for each in map(op_def_registry.get, names) if each is not None), None)
    if found is None:
        raise CannotReplayError(f"TensorFlow {tf.__version__} has no operator {op.op_type}")
    return found


def _size(op: OpRecord, argument: Any) -> Any:
    """An input that decides a shape, an axis or a place, from the arguments, where comparisons have it."""
    dtype = op.arguments.get(argument.type_attr, "int32") if argument.type_attr else argument.type
    return tf.constant(op.arguments[argument.name], tf.dtypes.as_dtype(dtype))


def _slots_of(op: OpRecord, op_def: Any) -> Iterator[tuple[Any, bool]]:
    """For each input of an operator, its definition, and whether it is the handle of a variable."""
    for argument in op_def.input_arg:
        count = 1
        if argument.number_attr:
            count = int(op.arguments[argument.number_attr])
        elif argument.type_list_attr:
            count = len(op.arguments[argument.type_list_attr])
        for _ in range(count):
            yield argument, argument.type == tf.resource.as_datatype_enum


def _count_of_outputs(op: OpRecord, op_def: Any) -> int:
    count = 0
    for argument in op_def.output_arg:
        if argument.number_attr:
            count += int(op.arguments[argument.number_attr])
        elif argument.type_list_attr:
            count += len(op.arguments[argument.type_list_attr])
        else:
            count += 1
    return count


def _attributes(op: OpRecord, op_def: Any, floating: Any) -> Iterator[Any]:
    """Names and values in turn, as the runtime takes them."""
    for attribute in op_def.attr:
        if attribute.name in op.arguments:
            yield attribute.name
            yield _attribute(op.arguments[attribute.name], attribute.type, floating)


def _attribute(value: Any, kind: str, floating: Any) -> Any:
    if isinstance(value, list | tuple) and kind.startswith("list("):
        return [_attribute(each, kind[5:-1], floating) for each in value]
    if kind == "type":
        return _wanted(tf.dtypes.as_dtype(value), floating).as_datatype_enum
    if kind == "string" and isinstance(value, str):
        return value.encode()
    return value


def _wanted(dtype: Any, floating: Any) -> Any:
    """The type of a tensor in a run whose floats have the type `floating`; None keeps each type."""
    if floating is None:
        return dtype
    if dtype.is_complex:
        return tf.complex128 if floating == tf.float64 else tf.complex64
    return floating if dtype.is_floating else dtype


def _tensor(value: Array, record: TensorRecord, floating: Any) -> Any:
    recorded = tf.dtypes.as_dtype(record.dtype)
    return tf.cast(tf.constant(np.ascontiguousarray(value).reshape(np.shape(value))), _wanted(recorded, floating))


def _array(tensor: Any) -> Array:
    """The elements as a numpy array; narrow floats that numpy lacks are widened to float32."""
    found: Array = np.asarray(tensor)
    return found if found.dtype.kind != "V" and found.dtype.isbuiltin else found.astype(np.float32)


# Writes a program that runs one recorded operator again with only TensorFlow and numpy.

_SCRIPT: Final = '''\
"""{title}"""
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

with np.load(__file__.removesuffix(".py") + ".npz") as file:
    data = dict(file)


def run(floating):
    """The outputs, with all floats in the type `floating`; None keeps the recorded types."""
    def wanted(name):
        dtype = tf.dtypes.as_dtype(name)
        if floating == "float64" and dtype.is_complex:
            return tf.complex128
        return tf.dtypes.as_dtype(floating) if floating is not None and dtype.is_floating else dtype

    inputs = [tf.cast(tf.constant(data[f"input_{{slot}}"]), wanted(name)) for slot, name in enumerate({types})]
    attributes = {attributes}
    return execute.quick_execute({op_type!r}, {count}, inputs, attributes, context.context())


'''


def _written(
    op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], title: str
) -> tuple[str, dict[int, Array]]:
    """The text of a program up to its function `run`, and the inputs that it reads."""
    op_def = _definition_of(op)
    if any(is_handle for _, is_handle in _slots_of(op, op_def)):
        raise CannotReplayError(f"cannot write a program that runs {op.kernel}: it reads or writes a variable")
    given = _inputs_of(inputs, values)
    parts = []
    for attribute in op_def.attr:
        if attribute.name in op.arguments:
            parts += [repr(attribute.name), _text(op.arguments[attribute.name], attribute.type)]
    text = _SCRIPT.format(
        title=title,
        types=[inputs[slot].dtype for slot in sorted(given)],
        attributes=f"({', '.join(parts)}{',' if parts else ''})",
        op_type=op_def.name,
        count=_count_of_outputs(op, op_def),
    )
    return text, given


def _text(value: Any, kind: str) -> str:
    """An attribute as text of Python."""
    if isinstance(value, list | tuple) and kind.startswith("list("):
        return f"[{', '.join(_text(each, kind[5:-1]) for each in value)}]"
    if kind == "type":
        return f"wanted({value!r}).as_datatype_enum"
    return as_python(_attribute(value, kind, None), lambda _: None)
