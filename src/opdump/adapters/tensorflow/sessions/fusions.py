"""Which fused operators give the same bits as the operators that they are made of.

The runtime fuses a product or convolution with its bias and activation, where nobody looks between. The libraries behind it choose a kernel
by the operator and its shapes: often one that adds in the same order fused or not, sometimes another. So it is tried, once for each
operator and shape: both ways on the same random numbers, with the threads and options of the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.grappler import item

from opdump.adapters.tensorflow.sessions.rehearsal import OwnSession

FUSED: Final[Mapping[str, str]] = {
    "_FusedConv2D": "Conv2D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
"""What the runtime makes of an operator that it fuses with others."""
FUSED_AFTER: Final = frozenset({"BiasAdd", "Relu", "Relu6"})
"""What an operator may be fused with without another rounding: bias and cuts come after the finished product."""
ATTRIBUTES: Final = frozenset(
    {"T", "strides", "padding", "data_format", "dilations", "explicit_paddings", "transpose_a", "transpose_b"}
)
"""What says how the fused operator multiplies."""
_COMPARED: Final = 1 << 12
"""Elements that are compared, at least: by chance so many are not the same in two orders of summation."""
_MOST_TRIALS: Final = 64
_MOST_SHAPES: Final = 256

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name of a tensor that is fed, and its shape; those whose shapes are not known are missing."""


def fused_with(node: Any) -> list[str]:
    """What a fused operator does after the product; empty for others, and where that rounds in between."""
    after = [each.decode() for each in node.attr["fused_ops"].list.s] if node.op in FUSED else []
    return after if set(after) <= FUSED_AFTER else []


class Fusions:
    """The fused operators of a graph that the runtime has rewritten.

    `fed` has, by tensor, the names of the placeholders that stand for what is fed. `config` is the session's ConfigProto.
    """

    def __init__(self, graph: Any, fed: Mapping[str, str], config: Any) -> None:
        self._graph = graph
        self._fed = fed
        self._config = config
        self._nodes = {node.name: node for node in graph.node}
        self._fused = [node for node in graph.node if fused_with(node)]
        self._alike: dict[Shapes, frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._fused)

    def alike(self, shapes: Shapes) -> frozenset[str]:
        """The names of those that give the same bits, fused or not, where tensors of these shapes are fed.

        Those whose shapes nobody knows before the run are not among them. Costs milliseconds, and where shapes are new, two runs of each
        fused operator.
        """
        found = self._alike.get(shapes)
        if found is None:
            if len(self._alike) >= _MOST_SHAPES:
                self._alike.clear()
            found = self._alike[shapes] = frozenset(self._find(dict(shapes)))
        return found

    def _find(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        try:
            known = self._shapes(shapes)
        except (tf.errors.OpError, ValueError):  # the run says what is wrong with the shapes
            return
        for node in self._fused:
            inputs = [name for name in node.input if not name.startswith("^")]
            read = [known.get(name) for name in inputs]
            if None in read:
                continue
            stays = tuple(self._nodes[name.partition(":")[0]].op == "Const" for name in inputs)
            if _gives_the_same(_serialised(_alone(node)), tuple(read), stays, _serialised(self._config)):
                yield node.name

    def _shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of the graph that have to be as they are, once these are fed."""
        meta = meta_graph_pb2.MetaGraphDef()
        meta.graph_def.CopyFrom(self._graph)
        of_placeholder = {self._fed[name]: shape for name, shape in shapes.items() if name in self._fed}
        for node in list(meta.graph_def.node):
            if node.name in of_placeholder:
                _set_shape(meta.graph_def, node, of_placeholder[node.name])
        meta.collection_def["train_op"].node_list.value.extend(node.name for node in self._fused)
        properties = item.Item(meta, ignore_colocation=True, ignore_user_placement=True).GetOpProperties()
        found = {}
        for name, outputs in properties.items():
            for slot, output in enumerate(outputs):
                sizes = tuple(dimension.size for dimension in output.shape.dim)
                if not output.shape.unknown_rank and all(size >= 0 for size in sizes):
                    found[f"{name}:{slot}" if slot else name] = sizes
        return found


def _set_shape(graph: Any, placeholder: Any, shape: Sequence[int]) -> None:
    """Has an operator of this shape, and of elements that nobody knows, in the place of a placeholder."""
    element = placeholder.attr["dtype"].type
    size = graph.node.add(op="Const", name=f"{placeholder.name}/opdump_shape")
    size.attr["dtype"].type = tf.int32.as_datatype_enum
    size.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(shape, tf.int32, [len(shape)]))
    placeholder.op = "Empty"
    placeholder.ClearField("attr")
    placeholder.attr["dtype"].type = element
    placeholder.input.append(size.name)


def _alone(node: Any) -> Any:
    """An operator without its name and place in a graph."""
    found = node_def_pb2.NodeDef(op=node.op, name="fused")
    for name in node.attr:
        if not name.startswith("_"):
            found.attr[name].CopyFrom(node.attr[name])
    return found


def _serialised(message: Any) -> bytes:
    found: bytes = message.SerializeToString(deterministic=True)
    return found


@lru_cache(maxsize=4096)  # networks repeat their layers, and programs their networks
def _gives_the_same(
    serialised: bytes, shapes: tuple[tuple[int, ...], ...], stays: tuple[bool, ...], config: bytes
) -> bool:
    """Whether a fused operator and what it is made of agree on random numbers, bit for bit.

    `stays` says which of its inputs are constants. False where one of them does not run alone: some kernels have fewer types or shapes.
    """
    try:
        return _agree(node_def_pb2.NodeDef.FromString(serialised), shapes, stays, config)
    except (tf.errors.OpError, ValueError):
        return False


def _agree(node: Any, shapes: tuple[tuple[int, ...], ...], stays: tuple[bool, ...], config: bytes) -> bool:
    random = np.random.default_rng(0)
    dtype = tf.as_dtype(node.attr["T"].type).as_numpy_dtype
    graph = graph_pb2.GraphDef()
    fed = []
    for place, (shape, is_constant) in enumerate(zip(shapes, stays, strict=True)):
        source = graph.node.add(name=f"input{place}", op="Const" if is_constant else "Placeholder")
        source.attr["dtype"].type = node.attr["T"].type
        if is_constant:
            source.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(random.normal(size=shape).astype(dtype)))
        else:
            fed.append((f"{source.name}:0", shape))
    fused = graph.node.add()
    fused.CopyFrom(node)
    fused.input.extend(f"input{place}" for place in range(len(shapes)))
    last = _add_parts(graph, fused)
    options = tf.compat.v1.ConfigProto.FromString(config)
    options.graph_options.rewrite_options.Clear()
    options.graph_options.rewrite_options.disable_meta_optimizer = True  # nothing is to be fused here
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        with OwnSession(graph=imported, config=options) as session:
            compared = 0
            for _ in range(_MOST_TRIALS):
                values = {name: random.normal(size=shape).astype(dtype) for name, shape in fed}
                one, other = session.run(["fused:0", last], values)
                if one.tobytes() != other.tobytes():
                    return False
                compared += one.size
                if compared >= _COMPARED:
                    return True
            return False


def _add_parts(graph: Any, fused: Any) -> str:
    """Adds what an operator is fused from; the name of what the last of these gives."""
    product = graph.node.add(name="product", op=FUSED[fused.op])
    product.input.extend(fused.input[:2])
    for name in fused.attr:
        if name in ATTRIBUTES:
            product.attr[name].CopyFrom(fused.attr[name])
    last, others = product.name, list(fused.input[2:])
    for place, op_type in enumerate(fused_with(fused)):
        part = graph.node.add(name=f"part{place}", op=op_type)
        part.input.append(last)
        part.attr["T"].CopyFrom(fused.attr["T"])
        if op_type == "BiasAdd":
            part.input.append(others.pop(0))
            if "data_format" in fused.attr:
                part.attr["data_format"].CopyFrom(fused.attr["data_format"])
        last = part.name
    return f"{last}:0"
