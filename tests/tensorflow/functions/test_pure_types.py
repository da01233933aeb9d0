"""Which TensorFlow operator types count as pure."""

from __future__ import annotations

import re

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from opdump.adapters.tensorflow.graphs.library import is_pure

OUTSIDE = re.compile(
    r"Py|File|Debug|Print|Log$|Inplace|Dataset|Iterator|Queue|Reader|Barrier|Stack(Push|Pop)|Summary.*Writer|Send|Recv|Host$"
)
"""Names that suggest an effect outside of the graph."""
HARMLESS = frozenset({"Log", "DebugGradientIdentity", "ShardedFilename", "ShardedFilespec"})
"""These only compute a value or a string."""
COMPUTATIONS = (
    *(
        "MatMul",
        "BatchMatMulV2",
        "Conv2D",
        "BiasAdd",
        "Relu",
        "Softmax",
        "Mul",
        "AddV2",
        "AddN",
        "Sum",
        "Mean",
        "FusedBatchNormV3",
    ),
    *(
        "Cast",
        "Reshape",
        "Transpose",
        "ConcatV2",
        "GatherV2",
        "StridedSlice",
        "Einsum",
        "Exp",
        "Rsqrt",
        "Tanh",
        "SelectV2",
    ),
    *(
        "StatelessRandomUniformV2",
        "TensorListSetItem",
        "TensorListStack",
        "RaggedRange",
        "SparseTensorDenseMatMul",
        "Identity",
    ),
)


def test_only_types_that_tensorflow_brings_along_and_that_touch_nothing_count_as_pure() -> None:
    known = op_def_pb2.OpList()
    known.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    library: dict[str, object] = {}
    pure = {each.name for each in known.op if is_pure(node_def_pb2.NodeDef(op=each.name), library.__getitem__)}
    suspicious = {name for name in pure if OUTSIDE.search(name)} - HARMLESS
    suspicious |= {name for name in pure if not hasattr(tf.raw_ops, name)}
    suspicious |= {each.name for each in known.op if each.name in pure and each.is_stateful}
    assert len(known.op) > 1500
    assert len(pure) > 600
    assert suspicious == set()
    assert set(COMPUTATIONS) <= pure
