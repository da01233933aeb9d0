"""Recomputes each operator of a TensorFlow dump from its recorded inputs and arguments, with `tf.raw_ops`.

Prints a line of JSON: how many outputs equal the recorded ones bit for bit, how many operators were excluded and why, and which others differ.
usage: recompute_tf.py dump
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
import itertools
import json
import sys
from collections import Counter

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

import opdump

STATEFUL = frozenset(
    {
        *("ReadVariableOp", "VarIsInitializedOp", "VariableShape", "ResourceGather", "AssignVariableOp"),
        *("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyAdam", "ResourceApplyMomentum"),
        *("ResourceApplyGradientDescent", "ResourceApplyRMSProp", "ResourceApplyAdagrad", "ResourceApplyKerasMomentum"),
        *("IteratorGetNext", "QueueDequeueV2", "QueueSizeV2", "QueueEnqueueV2", "AnonymousIteratorV3"),
        *("TensorListFromTensor", "TensorListStack", "TensorListGetItem", "TensorListSetItem", "TensorListReserve"),
        *("TensorListPushBack", "TensorListPopBack", "EmptyTensorList", "TensorListElementShape", "TensorListLength"),
        *("OptionalFromValue", "OptionalGetValue", "OptionalNone", "OptionalHasValue", "ResourceScatterAdd"),
    }
)
"""They read or change the state behind a handle, which a dump does not contain."""
RANDOM = frozenset({"RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "Multinomial"})
"""They draw from their own sequence. Operators named Stateless do not, and are recomputed."""


def of_record(record):
    """A recorded tensor; None if it has no values."""
    dtype = tf.as_dtype(record.dtype)
    if 0 in record.shape:
        return tf.zeros(record.shape, dtype)
    if record.payload is None:
        return None
    return tf.cast(tf.constant(np.asarray(record.payload.to_host())), dtype)


def without_elements(argument, arguments, op_type):
    """A stand-in for an empty tensor, which leaves no record: a list of axes, a shape, the unused statistics of a batch norm in training. Otherwise None."""
    dtype = tf.as_dtype(arguments.get(argument.type_attr, argument.type))
    return tf.zeros([0], dtype) if dtype.is_integer or op_type.startswith("FusedBatchNorm") else None


def called(execution):
    """The arguments for the function in `tf.raw_ops`; None if an input of the operator was not recorded."""
    definition, arguments = op_def_registry.get(execution.op.op_type), execution.op.arguments
    inputs = execution.inputs
    given, inferred, slot = {}, set(), 0
    for argument in definition.input_arg:
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
        count = 1
        if argument.number_attr:
            count = arguments[argument.number_attr]
        elif argument.type_list_attr:
            # Of a long list, a record contains only the beginning.
            last = argument is definition.input_arg[-1]
            count = max(inputs) + 1 - slot if last else len(arguments[argument.type_list_attr])
        values = [
            of_record(inputs[each]) if each in inputs else without_elements(argument, arguments, execution.op.op_type)
            for each in range(slot, slot + count)
        ]
        if any(value is None for value in values):
            return None
        given[argument.name] = values if argument.number_attr or argument.type_list_attr else values[0]
        slot += count
    for attribute in definition.attr:
        if attribute.name not in inferred and attribute.name in arguments:
            given[attribute.name] = converted(attribute.type, arguments[attribute.name])
    return given


def renamed(function, given):
    """The same arguments under the Python names of the operator's inputs: `axis` for `reduction_indices`."""
    own = [name for name in inspect.signature(function).parameters if name not in given and name != "name"]
    return {
        name if name in inspect.signature(function).parameters else own.pop(0): value for name, value in given.items()
    }


def computed(op, given, count):
    """The result of an operator for these inputs and attributes."""
    function = getattr(tf.raw_ops, op.op_type, None)
    if function is not None:
        return function(**renamed(function, given))
    # Internal kernels of the runtime, such as _UnaryOpsComposition, are not in the public interface.
    definition = op_def_registry.get(op.op_type)
    inputs = tf.nest.flatten([given[argument.name] for argument in definition.input_arg])
    attributes = []
    for attribute in definition.attr:
        value = converted(attribute.type, op.arguments[attribute.name])
        attributes += [attribute.name, value.as_datatype_enum if attribute.type == "type" else value]
    return execute.execute(op.op_type, count, inputs, tuple(attributes), context.context())


def converted(kind, value):
    if kind == "type":
        return tf.as_dtype(value)
    if kind == "list(type)":
        return [tf.as_dtype(each) for each in value]
    return value


def orders(summands):
    """Orders of summation: a sum begins with the first summand whose memory nothing else holds; grappler and long sums reorder the others."""
    return itertools.islice(itertools.permutations(summands), 1, 120)


def same(found, record):
    expected = of_record(record)
    return found.dtype == expected.dtype and found.numpy().tobytes() == expected.numpy().tobytes()


def main(dump):
    left_out: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    differing: list[str] = []
    outputs = equal = marked = reordered = 0
    for execution in opdump.open(dump).executions():
        op = execution.op
        if op.skip or not execution.outputs:
            continue
        if op.op_type in STATEFUL or op.op_type in RANDOM or op.op_type == "XlaLaunch":
            left_out["random" if op.op_type in RANDOM else "stateful"] += 1
            continue
        if not hasattr(tf.raw_ops, op.op_type):
            left_out["of the runtime"] += 1
            continue
        given = called(execution)
        if given is None:
            lacking[op.op_type] += 1
            continue
        result = computed(op, given, len(execution.outputs))
        flat = tf.nest.flatten(result if result is not None else ())
        for slot, record in execution.outputs.items():
            if record.payload is None:
                continue
            outputs += 1
            if same(flat[slot], record):
                equal += 1
            elif op.op_type == "AddN" and any(
                same(tf.raw_ops.AddN(inputs=list(each)), record) for each in orders(given["inputs"])
            ):
                reordered += 1
            elif op.arguments.get("source") == "computed apart" or not {"inside", "executed_as"}.isdisjoint(
                op.arguments
            ):
                marked += 1
            else:
                differing.append(f"{op.op_name} ({op.op_type}), output {slot}")
    print(
        json.dumps(
            {
                "outputs": outputs,
                "equal": equal,
                "marked": marked,
                "reordered": reordered,
                "differing": differing,
                "left_out": left_out,
                "lacking": lacking,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
