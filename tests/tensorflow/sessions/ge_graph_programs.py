"""Writes graphs of TensorFlow programs, with the facts that TensorFlow itself reports of them: `ge_graph_programs.py DIRECTORY`.

For each program, `write_programs` returns the file, its model, and from TensorFlow's own GraphDef: types by name, inputs by name, shapes
by name. As a script, it prints these in one line, `GRAPHS {...}`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from opdump.adapters.tensorflow.sessions.graph_files import ge_graphs_of
from opdump.adapters.tensorflow.sessions.subgraph import subgraph_of
from opdump.layouts.graph_files.ge import GeGraph, write_new_ge_graph

v1 = tf.compat.v1
Programs = dict[str, Any]


def _facts(graph_def: Any) -> dict[str, Any]:
    """The type and inputs of every node of a graph or a function, inputs in the notation of graphs."""
    return {
        node.name: {
            "type": node.op,
            "inputs": [
                f"{each[1:]}:-1" if each.startswith("^") else each if ":" in each else f"{each}:0"
                for each in node.input
            ],
        }
        for node in graph_def.node
    }


def write_programs(directory: Path) -> Programs:
    """The programs by name; the graphs of each are in a separate file."""
    found: Programs = {}

    def add(name: str, graphs: tuple[GeGraph, ...], graph: Any, **facts: Any) -> None:
        file = write_new_ge_graph([directory], len(found) + 1, graphs).path
        found[name] = {"file": str(file), **_facts_of_graph(graph), **facts}

    _training(add)
    _feeding(add)
    _branching(add)
    return found


def _facts_of_graph(graph: Any) -> dict[str, Any]:
    graph_def = graph.as_graph_def(add_shapes=True)
    return {
        "nodes": _facts(graph_def),
        "functions": sorted(function.signature.name for function in graph_def.library.function),
        "shapes": {
            operation.name: [
                None if tensor.shape.rank is None else [-1 if dim is None else dim for dim in tensor.shape.as_list()]
                for tensor in operation.outputs
            ]
            for operation in graph.get_operations()
        },
    }


def _training(add: Callable[..., None]) -> None:
    """Three graphs: a session that reads an iterator and trains, the start of the iterator, and the initialisation."""
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensor_slices(([[1.0, 2.0]] * 4, [[1.0]] * 4)).batch(2)
        iterator = v1.data.make_initializable_iterator(data)
        x, y = iterator.get_next()
        weights = v1.get_variable("weights", [2, 1], use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights, name="product") - y), name="loss")
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        initialize = v1.global_variables_initializer()
        fetched = subgraph_of([step, loss], ())
        run = [operator.name for operator in fetched.operations]
        add("training", ge_graphs_of("ge_default_20201120163719_3", fetched), graph, run=run)
        add("starting", ge_graphs_of("ge_default_20201120163719_2", subgraph_of([iterator.initializer], ())), graph)
        add("initialising", ge_graphs_of("ge_default_20201120163719_1", subgraph_of([initialize], ())), graph)


def _feeding(add: Callable[..., None]) -> None:
    """Feeds of a placeholder, of one with a default, and of an intermediate tensor; control inputs, reference variables, a loop of frames."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        free = v1.placeholder(tf.float32, None, "free")
        rate = v1.placeholder_with_default(0.5, [], "rate")
        first, second = tf.split(x, [1, 2], axis=1, name="parts")
        middle = tf.identity(first * 2.0, name="middle")
        with tf.control_dependencies([tf.no_op("before")]):
            after = tf.add(middle, rate, name="after")
        v1.disable_control_flow_v2()
        count = v1.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)], name="loop")
        total = tf.add_n([tf.reduce_sum(after), tf.reduce_sum(second), tf.cast(count, tf.float32)], name="total")
        total = tf.add(total, free, name="end")
        fed = {x.name, free.name, rate.name, middle.name}
        subgraph = subgraph_of([total], fed)
        graphs = ge_graphs_of("ge_default_20201120163719_4", subgraph, is_computational=True)
        run = [operation.name for operation in subgraph.operations]
        add("feeding", graphs, graph, run=run)
        shared = subgraph_of([tf.concat([first, second], 1, name="both")], {first.name})
        add("partly fed", ge_graphs_of("ge_default_20201120163719_5", shared), graph)


def _branching(add: Callable[..., None]) -> None:
    """A function with a branch, a loop and a call, and the same function imported from its GraphDef."""

    def sine(value: Any) -> Any:
        return tf.sin(value)

    inner = tf.function(sine, autograph=False)

    def branches(x: Any) -> Any:
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x) * 2.0, lambda: tf.zeros_like(x))
        return tf.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, value + 1.0), [0, y])[1]

    traced = tf.function(branches, autograph=False).get_concrete_function(tf.TensorSpec([None, 3], tf.float32)).graph
    add("function", ge_graphs_of("ge_default_20201120163719_6", traced), traced)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(traced.as_graph_def(), name="")
        subgraph = subgraph_of([graph.get_tensor_by_name(traced.outputs[0].name)], {"x:0"})
        add("imported", ge_graphs_of("ge_default_20201120163719_7", subgraph), graph)


if __name__ == "__main__":
    print("GRAPHS " + json.dumps(write_programs(Path(sys.argv[1]))))
