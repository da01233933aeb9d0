"""Comparisons of ONNX Runtime runs: none ends in an error, and equivalent notation is no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

import opdump
import opdump.onnx
from opdump.commands import main
from opdump.comparison.arguments import differing
from opdump.comparison.nodes import Node
from opdump.errors import CannotReplayError
from opdump.records import RUN_FACTS, OpRecord, TensorRecord
from opdump.replaying import replay
from tests.comparison.onnx_runs import compared
from tests.onnx.recording import FLOAT, model_of, numbers

X = {"x": numbers(2, 2, 6, 6)}


def around(node: onnx.NodeProto, scale: float, initializers: dict[str, Any] | None = None) -> onnx.ModelProto:
    """`y = tanh(f(x * scale)) * 2`; the node reads `s` and outputs `t`."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["s"], name="scale"),
        node,
        helper.make_node("Tanh", ["t"], ["u"], name="tanh"),
        helper.make_node("Mul", ["u", "two"], ["y"], name="twice"),
    ]
    weights = {"scale": np.array(scale, np.float32), "two": np.array(2, np.float32), **(initializers or {})}
    return model_of(nodes, {"x": (FLOAT, [2, 2, 6, 6])}, {"y": (FLOAT, None)}, weights, opset=17)


OMITTING = {
    "LayerNormalization": (
        helper.make_node("LayerNormalization", ["s", "g", "b"], ["t"], name="norm", axis=-1, epsilon=0.5),
        {"g": numbers(6), "b": numbers(6, seed=1)},
    ),
    "MaxPool": (helper.make_node("MaxPool", ["s"], ["t"], name="pool", kernel_shape=[2, 2]), {}),
    "Dropout": (helper.make_node("Dropout", ["s"], ["t"], name="drop"), {}),
    "LSTM": (
        helper.make_node("LSTM", ["r", "w", "v"], ["t"], name="lstm", hidden_size=3),
        {"w": numbers(1, 12, 6), "v": numbers(1, 12, 3, seed=1)},
    ),
}


@pytest.mark.parametrize("kind", OMITTING)
def test_a_node_that_leaves_outputs_out_is_run_again_with_those_that_it_has(tmp_path: Path, kind: str) -> None:
    node, weights = OMITTING[kind]
    before, after = around(node, 1.0, weights), around(node, 1.5, weights)
    if kind == "LSTM":
        for model in (before, after):
            model.graph.node.insert(1, helper.make_node("Reshape", ["s", "shape"], ["r"], name="rows"))
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4, 6, 6]), "shape"))
    found = compared(tmp_path, before, after, X)
    assert found.verdict == "divergent"
    assert found.introduced[0].op.op_name == "scale"


def node_of(op_type: str, shapes: list[tuple[int, ...]], **arguments: Any) -> Node:
    op = OpRecord(op_type, op_type, 0, kernel=f"ai.onnx::{op_type}", arguments=arguments)
    inputs = {slot: TensorRecord(op, "input", slot, "float32", shape) for slot, shape in enumerate(shapes)}
    return Node(0, op, inputs, {0: TensorRecord(op, "output", 0, "float32", shapes[0])})


WRITTEN_OUT: dict[str, tuple[list[tuple[int, ...]], dict[str, Any], dict[str, Any]]] = {
    "DequantizeLinear": ([(2, 3), (), ()], {"axis": 1}, {"axis": 0}),
    "Conv": ([(1, 3, 8, 8), (4, 3, 5, 5)], {"pads": [0] * 4, "strides": [1, 1], "kernel_shape": [5, 5]}, {"group": 3}),
    "MaxPool": ([(1, 3, 8, 8)], {"ceil_mode": 0, "storage_order": 0}, {"pads": [1, 1, 1, 1]}),
    "LayerNormalization": ([(2, 6), (6,)], {"axis": 1, "epsilon": 1e-05}, {"epsilon": 1e-3}),
    "Gemm": ([(2, 3), (3, 4)], {"alpha": 1.0, "beta": 1.0, "transA": 0}, {"transB": 1}),
    "Transpose": ([(2, 3, 4)], {"perm": [2, 1, 0]}, {"perm": [0, 2, 1]}),
    "Softmax": ([(2, 3, 4)], {"axis": -1}, {"axis": 1}),
    "Gelu": ([(2, 3)], {"approximate": "none"}, {"approximate": "tanh"}),
    "GRU": ([(4, 1, 6), (1, 9, 6), (1, 9, 3)], {"direction": "forward", "hidden_size": 3}, {"linear_before_reset": 1}),
}


def branching(taken: list[onnx.NodeProto], *after: onnx.NodeProto) -> onnx.ModelProto:
    """An If that takes its first branch and outputs `t`; the model's `y` is `t`, or `after` applied to it."""
    body = helper.make_graph(taken, "taken", [], [onnx.ValueInfoProto(name=taken[-1].output[0])])
    result = "t" if after else "y"
    nodes = [helper.make_node("If", ["yes"], [result], name="if", then_branch=body, else_branch=body), *after]
    weights = {"yes": np.array(True), "zero": np.array(0, np.int64)}
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}, weights, opset=17)


def random_branch(scale: float) -> onnx.ModelProto:
    return branching([helper.make_node("RandomNormal", [], ["r"], name="r", shape=[4], seed=1.0, scale=scale)])


def constant_branch(value: float) -> onnx.ModelProto:
    return branching([helper.make_node("Constant", [], ["k"], name="k", value_floats=[value] * 4)])


def sequence_branch(by: float) -> onnx.ModelProto:
    taken = [
        helper.make_node("Elu", ["x"], ["e"], name="elu", alpha=by),
        helper.make_node("SequenceConstruct", ["e"], ["s"], name="s"),
    ]
    return branching(taken, helper.make_node("SequenceAt", ["t", "zero"], ["y"], name="at"))


def count_branch(trips: int) -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"], name="on"),
            helper.make_node("RandomNormal", [], ["r"], name="r", shape=[4], seed=1.0),
            helper.make_node("Add", ["v", "r"], ["w"], name="add"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [4]),
        ],
        [onnx.ValueInfoProto(name="on"), onnx.ValueInfoProto(name="w")],
    )
    loop = helper.make_node("Loop", ["trips", "yes", "x"], ["y"], name="loop", body=body)
    weights = {"trips": np.array(trips, np.int64), "yes": np.array(True)}
    return model_of([loop], {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}, weights, opset=17)


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
@pytest.mark.parametrize(
    ("made", "before", "after"),
    [
        (random_branch, 1.0, 2.0),
        (constant_branch, 3.0, 4.0),
        (sequence_branch, 0.5, 1.5),
        (count_branch, 2, 3),
        (count_branch, 0, 1),
    ],
)
def test_a_difference_inside_bodies_that_are_not_shown_is_a_difference(
    tmp_path: Path, saved_data: str, made: Any, before: float, after: float
) -> None:
    feeds = {"x": numbers(4)}
    assert compared(tmp_path / "same", made(before), made(before), feeds, saved_data=saved_data).verdict == "identical"
    result = compared(tmp_path / "other", made(before), made(after), feeds, saved_data=saved_data)
    assert result.verdict == "divergent", result.headline


def test_an_if_whose_bodies_are_not_shown_is_accused_and_cannot_be_replayed(tmp_path: Path) -> None:
    result = compared(tmp_path, random_branch(1.0), random_branch(2.0), {"x": numbers(4)})
    assert result.headline.startswith("FIRST DIVERGENCE #0 If output.0: inputs agree, output differs")
    with pytest.raises(
        CannotReplayError, match=r"ai\.onnx::If runs the operators of its bodies, which the dump does not have"
    ):
        replay(tmp_path / "b", "if")


@pytest.mark.parametrize(("saved_data", "next_command"), [("full", "replay"), ("statistic", "show")])
def test_a_replay_is_recommended_only_if_the_dump_has_the_elements_for_it(
    tmp_path: Path, saved_data: str, next_command: str
) -> None:
    def elu(alpha: float) -> onnx.ModelProto:
        return around(helper.make_node("Elu", ["s"], ["t"], name="elu", alpha=alpha), 1.0)

    compared(tmp_path, elu(1.0), elu(1.5), X, saved_data=saved_data)
    text = CliRunner().invoke(main, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output
    assert f"next: opdump {next_command} {tmp_path / 'b'} --step 0 --op elu" in text
    recommended = [next_command, str(tmp_path / "b"), "--step", "0", "--op", "elu"]
    assert CliRunner().invoke(main, recommended).exit_code == 0


@pytest.mark.parametrize("op_type", WRITTEN_OUT)
def test_a_default_that_one_program_writes_out_is_no_difference(op_type: str) -> None:
    shapes, same, other = WRITTEN_OUT[op_type]
    needed = {"kernel_shape": [2, 2]} if op_type == "MaxPool" else {}
    plain = node_of(op_type, shapes, **needed)
    assert differing(plain, node_of(op_type, shapes, **needed, **same)) == {}
    assert differing(plain, node_of(op_type, shapes, **needed, **other)).keys() == other.keys()


def test_a_default_of_an_older_version_is_distinguished_from_that_of_the_newest(tmp_path: Path) -> None:
    def model(opset: int, **attributes: Any) -> onnx.ModelProto:
        node = helper.make_node("Softmax", ["x"], ["y"], name="softmax", **attributes)
        return model_of([node], {"x": (FLOAT, [2, 2, 6, 6])}, {"y": (FLOAT, None)}, opset=opset)

    assert compared(tmp_path / "old", model(11), model(11, axis=1), X).verdict == "identical"
    assert compared(tmp_path / "new", model(13), model(13, axis=3), X).verdict == "identical"
    found = compared(tmp_path / "both", model(11), model(13), X)
    assert (found.verdict, found.introduced[0].op.op_name) == ("divergent", "softmax")
    assert "axis: 1 in A" in found.introduced[0].evidence


def test_a_default_of_the_runtime_s_own_operators_is_none_either() -> None:
    def node(**arguments: Any) -> Node:
        op = OpRecord("QGemm", "QGemm", 0, kernel="com.microsoft::QGemm", arguments=arguments)
        return Node(0, op, {0: TensorRecord(op, "input", 0, "uint8", (2, 3))}, {})

    assert differing(node(), node(alpha=1.0, transA=0)) == {}
    assert differing(node(), node(transB=1)) == {"transB": (0, 1)}


def test_what_an_adapter_adds_about_a_run_is_no_argument() -> None:
    def node(kernel: str, **arguments: Any) -> Node:
        return Node(0, OpRecord("Mul", "Mul", 0, kernel=kernel, arguments=arguments), {}, {})

    told = dict.fromkeys(RUN_FACTS, "computed apart")
    for kernel in ("Mul", "lax::mul", "ai.onnx::Mul"):
        assert differing(node(kernel), node(kernel, **told)) == {}
        assert differing(node(kernel, other=2, **told), node(kernel, other=3)) == {"other": (2, 3)}
        assert node(kernel, **told).written_arguments == {}


def test_nan_is_the_same_argument_as_nan() -> None:
    def node(value: Any) -> Node:
        return Node(0, OpRecord("fill", "fill", 0, kernel="aten::fill", arguments={"fill_value": value}), {}, {})

    assert differing(node(float("nan")), node(float("nan"))) == {}
    assert differing(node([1.0, float("nan")]), node([1.0, float("nan")])) == {}
    assert differing(node(float("nan")), node(0.0)).keys() == {"fill_value"}


def test_a_dimension_of_a_new_axis_is_counted_in_the_output() -> None:
    def node(dim: int) -> Node:
        op = OpRecord("unsqueeze", "unsqueeze", 0, kernel="aten::unsqueeze", arguments={"dim": dim})
        read, made = (
            TensorRecord(op, "input", 0, "float32", (3, 3)),
            TensorRecord(op, "output", 0, "float32", (3, 3, 1)),
        )
        return Node(0, op, {0: read}, {0: made})

    assert differing(node(-1), node(2)) == {}
    assert differing(node(-1), node(1)) == {"dim": (-1, 1)}


def crossed(form: str, *, faulty: bool) -> onnx.ModelProto:
    """A model whose faulty result is the negative of the right one."""
    make, inputs = helper.make_node, ["b", "a"] if faulty else ["a", "b"]
    nodes = [make("Relu", ["x"], ["a"], name="relu"), make("Tanh", ["x"], ["b"], name="tanh")]
    if form == "swapped":
        nodes += [make("Sub", inputs, ["y"], name="sub")]
    elif form == "swapped_and_scaled":
        nodes += [make("Sub", inputs, ["d"], name="sub"), make("Mul", ["d", "half"], ["y"], name="mul")]
    else:
        nodes += [
            make("Sub", ["a", "b"], ["d"], name="sub"),
            make("Neg" if faulty else "Identity", ["d"], ["y"], name="last"),
        ]
    weights = {"half": np.array(0.5, np.float32)} if form == "swapped_and_scaled" else {}
    return model_of(nodes, {"x": (FLOAT, [2, 2, 6, 6])}, {"y": (FLOAT, None)}, weights, opset=17)


@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("form", ["swapped", "swapped_and_scaled", "negated"])
def test_a_negated_result_is_a_difference(tmp_path: Path, form: str, saved: str) -> None:
    found = compared(tmp_path, crossed(form, faulty=False), crossed(form, faulty=True), X, saved_data=saved)
    assert found.verdict == "divergent"
    told = [each.b.op_name for each in found.introduced if each.b is not None]
    assert {"relu", "tanh"}.isdisjoint(told), "these give the same in both"


def gated(by: str) -> onnx.ModelProto:
    """Two products of one input, one of which gates the other or itself."""
    nodes = [
        helper.make_node("MatMul", ["x", "wu"], ["u"], name="up"),
        helper.make_node("MatMul", ["x", "ws"], ["s"], name="side"),
        helper.make_node("Sigmoid", ["u"], ["g"], name="gate"),
        helper.make_node("Mul", ["g", by], ["y"], name="gated"),
    ]
    weights = {"wu": numbers(6, 6, seed=1), "ws": numbers(6, 6, seed=2)}
    return model_of(nodes, {"x": (FLOAT, [2, 2, 6, 6])}, {"y": (FLOAT, None)}, weights, opset=17)


def test_an_operator_that_reads_another_one_is_named_and_not_that_one_which_is_right(tmp_path: Path) -> None:
    found = compared(tmp_path, gated("s"), gated("u"), X)
    assert [each.op.op_name for each in found.introduced] == ["gated"]
    assert found.introduced[0].evidence == "reads up; in A it reads side"


def handed_on(form: str, scale: float) -> onnx.ModelProto:
    """A model that hands a scaled input on in a sequence or an optional, of which no statistics are recorded."""
    make = helper.make_node
    nodes = [make("Tanh", ["x"], ["a"], name="tanh"), make("Mul", ["a", "scale"], ["b"], name="scaled")]
    if form == "optional":
        nodes += [make("Optional", ["b"], ["o"], name="given"), make("OptionalGetElement", ["o"], ["c"], name="taken")]
    else:
        nodes += [make("SequenceConstruct", ["a", "b"], ["o"], name="given")]
        taken = make("ConcatFromSequence", ["o"], ["c"], name="taken", axis=0)
        nodes += [make("SequenceAt", ["o", "last"], ["c"], name="taken") if form == "sequence" else taken]
    nodes += [make("Tanh", ["c"], ["y"], name="end")]
    weights = {"scale": np.array(scale, np.float32)} | ({"last": np.array(1)} if form == "sequence" else {})
    return model_of(nodes, {"x": (FLOAT, [2, 2, 6, 6])}, {"y": (FLOAT, None)}, weights, opset=17)


@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("form", ["sequence", "joined", "optional"])
def test_a_difference_is_followed_through_a_sequence_and_an_optional(tmp_path: Path, form: str, saved: str) -> None:
    for name, scale in (("a", 1.0), ("b", 1.0), ("c", 1.01)):
        with opdump.onnx.session(
            handed_on(form, scale), path=str(tmp_path / name), saved_data=cast(Any, saved), layout="packed"
        ) as session:
            for _ in range(2):
                session.run(None, X)
    assert opdump.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"
    found = opdump.compare(tmp_path / "a", tmp_path / "c").introduced
    assert [each.b.op_name for each in found if each.b is not None] == ["scaled"]


@pytest.mark.parametrize("op_type", ["SequenceAt", "SequenceErase"])
def test_an_operator_of_a_sequence_that_was_fed_is_not_said_to_have_the_same_inputs(
    tmp_path: Path, op_type: str
) -> None:
    nodes = [helper.make_node(op_type, ["s", "first"], ["t"], name="taken")]
    if op_type == "SequenceErase":
        nodes += [helper.make_node("ConcatFromSequence", ["t"], ["u"], name="joined", axis=0)]
    nodes += [helper.make_node("Tanh", ["u" if op_type == "SequenceErase" else "t"], ["y"], name="end")]
    given = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    graph = helper.make_graph(
        nodes,
        "fed",
        [given],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array(0), "first")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    for name, scale in (("a", 1.0), ("b", 1.5)):
        with opdump.onnx.session(model, path=str(tmp_path / name), saved_data="statistic") as session:
            session.run(None, {"s": [X["x"] * np.float32(scale)] * 2})
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "divergent"
    assert "inputs agree" not in result.headline
