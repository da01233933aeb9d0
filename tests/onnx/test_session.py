"""OnnxSession: what it returns, what it records, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from opdump.adapters.host import NumpyReader
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.checks import OverflowStatus
from opdump.errors import CaptureStateError, ModelFileError
from opdump.plan import DumpPlan, StepSet
from opdump.plan.selection import Exclusion, ModelSelection, OperatorRange
from opdump.recorder import TensorSnapshot, make_recorder
from opdump.records import OpRecord
from opdump.testing import CollectingWriter
from tests.onnx.recording import FLOAT, INT64, Recording, model_of, numbers, plain_run

X = {"x": (FLOAT, ["n"])}


def chain() -> onnx.ModelProto:
    """`x` + w, relu, negation: three operators in a row."""
    return model_of(
        [
            helper.make_node("Add", ["x", "w"], ["a"], name="add"),
            helper.make_node("Relu", ["a"], ["b"], name="relu"),
            helper.make_node("Neg", ["b"], ["y"], name="neg"),
        ],
        X,
        {"y": (FLOAT, ["n"])},
        {"w": np.array([0.5], np.float32)},
    )


def test_inputs_come_before_outputs_and_weights_are_inputs() -> None:
    recording = Recording(chain())
    x = numbers(4)
    (y,) = recording.run({"x": x})
    assert same_bits(recording.elements("add", "input", 0), x)
    assert same_bits(recording.elements("add", "input", 1), np.array([0.5], np.float32))
    assert same_bits(recording.elements("relu", "output"), np.maximum(x + np.float32(0.5), 0))
    assert same_bits(recording.elements("neg", "output"), y)
    records = recording.tensors("add")
    assert [(record.argument, record.source) for record in records.values()] == [
        ("A", "x:0"),
        ("B", "Parameter.w"),
        ("C", ""),
    ]
    (op,) = {record.op.op_name: record.op for record in records.values()}.values()
    assert (op.op_type, op.kernel, op.net_name, op.graph_id, op.step) == ("Add", "ai.onnx::Add", "Net", 1, 0)
    assert [op.order for op in recording.writer.ops] == [0, 1, 2]
    stamps = [op.timestamp for op in recording.writer.ops]
    assert stamps == sorted(set(stamps))


def test_a_model_of_a_file_has_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ResNet-50.v1.onnx"
    onnx.save_model(chain(), path)
    recording = Recording(path, {"layout": "acl"})
    recording.run({"x": numbers(3)})
    assert {op.net_name for op in recording.writer.ops} == {"ResNet-50.v1"}


def test_in_layouts_of_mindspore_the_net_is_called_as_the_plan_says() -> None:
    recording = Recording(chain(), {"net_name": "LeNet"})
    recording.run({"x": numbers(3)})
    assert {(op.net_name, op.graph_id) for op in recording.writer.ops} == {("LeNet", 1)}


@pytest.mark.parametrize("name", ["ResNet-50", "graph"])
def test_a_dump_list_calls_a_model_by_its_file_or_its_graph(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ResNet-50.onnx"
    onnx.save_model(chain(), path)
    recording = Recording(path, {"models": (ModelSelection(model_name=name, layers=("relu",)),)})
    recording.run({"x": numbers(3)})
    assert recording.captured == ["relu"]
    assert recording.skipped == {"add": "not selected", "neg": "not selected"}


def test_a_model_that_no_entry_names_is_run_and_not_recorded() -> None:
    recording = Recording(chain(), {"models": (ModelSelection(model_name="other"),)})
    assert same_bits(recording.run({"x": numbers(3)}), plain_run(chain().SerializeToString(), {"x": numbers(3)}))
    assert recording.writer.ops == []


def test_a_range_and_blacklists_leave_out_operators_and_slots() -> None:
    selection = ModelSelection(
        ranges=(OperatorRange("add", "relu"),),
        type_exclusions=(Exclusion("Add", inputs=frozenset({1})),),
        name_exclusions=(Exclusion("relu", outputs=frozenset({0})),),
    )
    recording = Recording(chain(), {"models": (selection,)})
    recording.run({"x": numbers(3)})
    assert recording.captured == ["add", "relu"]
    assert set(recording.tensors("add")) == {("input", 0), ("output", 0)}
    assert set(recording.tensors("relu")) == {("input", 0)}


@pytest.mark.parametrize(
    ("entries", "captured"),
    [
        ([ModelSelection(layers=("neg",), ranges=(OperatorRange("add", "add"),))], ["add", "neg"]),
        (
            [ModelSelection(layers=("neg",)), ModelSelection(ranges=(OperatorRange("add", "relu"),))],
            ["add", "relu", "neg"],
        ),
        ([ModelSelection(), ModelSelection(ranges=(OperatorRange("add", "add"),))], ["add", "relu", "neg"]),
    ],
)
def test_layers_and_ranges_add_to_each_other(entries: list[ModelSelection], captured: list[str]) -> None:
    recording = Recording(chain(), {"models": tuple(entries)})
    recording.run({"x": numbers(3)})
    assert recording.captured == captured


@pytest.mark.parametrize(
    ("sides", "wanted"), [({"inputs": False}, ("a", "b", "y")), ({"outputs": False}, ("a", "b")), ({}, ("a", "b", "y"))]
)
def test_only_requested_values_become_outputs(sides: dict[str, bool], wanted: tuple[str, ...]) -> None:
    recording = Recording(chain(), sides)
    recording.run({"x": numbers(3)})
    assert sorted(recording.session._recorded.wanted) == sorted(wanted)
    kept = {side for side in ("input", "output") if sides.get(f"{side}s", True)}
    assert {record.io for record in recording.writer.tensors} == kept


def test_steps_count_runs_and_only_the_wanted_ones_are_recorded() -> None:
    recording = Recording(chain(), {"steps": StepSet.parse("1|3")})
    content = chain().SerializeToString()
    for number in range(5):
        feeds = {"x": numbers(4, seed=number)}
        assert same_bits(recording.run(feeds), plain_run(content, feeds))
        recording.session.run_plain(None, feeds)  # does not count as a step
    assert recording.writer.steps == [1, 3]
    assert recording.recorder.tally.executed == 6


def test_names_ask_for_some_outputs_in_their_order() -> None:
    model = chain()
    model.graph.output.extend([onnx.ValueInfoProto(name="a"), onnx.ValueInfoProto(name="b")])
    recording = Recording(model)
    feeds = {"x": numbers(3)}
    assert [value.name for value in recording.session.outputs] == ["y", "a", "b"]
    assert same_bits(recording.run(feeds, ["b", "y"]), plain_run(model.SerializeToString(), feeds, ["b", "y"]))
    assert len(recording.captured) == 3


def test_a_program_may_write_into_what_it_fed_and_what_it_got() -> None:
    recording = Recording(chain())
    x = numbers(4)
    given = x.copy()
    (y,) = recording.run({"x": x})
    answer = y.copy()
    x[:] = 7
    y[:] = 7
    assert same_bits(recording.elements("add", "input", 0), given)
    assert same_bits(recording.elements("neg", "output"), answer)


def test_statistics_of_a_tensor_are_the_same_for_all_its_readers() -> None:
    recording = Recording(chain(), {"saved_data": "statistic", "statistic_category": ("max", "md5")})
    for step in range(3):
        recording.run({"x": numbers(4, seed=step)})
    made = {(r.op.step, r.name): r.statistics for r in recording.writer.tensors if r.io == "output"}
    read = [(r.op.step, r.source, r.statistics) for r in recording.writer.tensors if r.source in ("add:0", "relu:0")]
    assert len(read) == 6
    for step, source, statistics in read:
        name, _, slot = source.rpartition(":")
        assert statistics == made[step, f"{name}:output:{slot}"]
    assert len({statistics["md5"] for (_, name), statistics in made.items() if name == "add:output:0"}) == 3
    weights = [r.statistics["max"] for r in recording.writer.tensors if r.source == "Parameter.w"]
    assert weights == [0.5, 0.5, 0.5]


def test_a_weight_that_is_fed_is_recorded_as_it_was_fed() -> None:
    model = chain()
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [1]))
    recording = Recording(model)
    fed = np.array([2.0], np.float32)
    recording.run({"x": numbers(3)})
    assert recording.elements("add", "input", 1) == np.float32(0.5)
    other = Recording(model)
    assert same_bits(
        other.run({"x": numbers(3), "w": fed}), plain_run(model.SerializeToString(), {"x": numbers(3), "w": fed})
    )
    assert same_bits(other.elements("add", "input", 1), fed)


@pytest.mark.parametrize(
    "feeds",
    [{}, {"x": np.zeros(3)}, {"x": np.zeros((3, 1), np.float32)}, {"x": np.zeros(3, np.float32), "z": np.zeros(1)}],
)
def test_wrong_feeds_give_the_error_of_the_runtime(feeds: dict[str, Any]) -> None:
    plain = _error(lambda: plain_run(chain().SerializeToString(), feeds))
    found = _error(lambda: Recording(chain()).run(feeds))
    assert (type(found), str(found)) == (type(plain), str(plain))


def test_a_list_is_fed_as_the_runtime_takes_it() -> None:
    recording = Recording(chain())
    assert same_bits(recording.run({"x": [1.0, -2.0]}), plain_run(chain().SerializeToString(), {"x": [1.0, -2.0]}))
    assert same_bits(recording.elements("add", "input", 0), np.array([1, -2], np.float32))


def test_what_is_no_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.onnx: cannot be read"):
        Recording(tmp_path / "missing.onnx")
    for content in (b"no model", b""):
        (tmp_path / "text.onnx").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"text\.onnx: not an ONNX model"):
            Recording(tmp_path / "text.onnx")


def test_random_operators_run_once_for_each_run_of_the_program() -> None:
    model = model_of(
        [
            helper.make_node("RandomNormal", [], ["r"], name="random", shape=[4], seed=3.0),
            helper.make_node("Add", ["x", "r"], ["y"], name="add"),
        ],
        {"x": (FLOAT, [4])},
        {"y": (FLOAT, [4])},
    )
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    plain = [session.run(None, {"x": numbers(4)}) for _ in range(4)]
    recording = Recording(model, {"steps": StepSet.parse("1|2")}, memory_limit=1)
    assert "random operators" in recording.session.notes[0]
    for expected in plain:
        assert same_bits(recording.run({"x": numbers(4)}), expected)
    assert len(recording.captured) == 4


def test_half_precision_is_answered_as_without_recording() -> None:
    half = TensorProto.FLOAT16
    model = model_of(
        [
            helper.make_node("Exp", ["x"], ["a"], name="exp"),
            helper.make_node("Tanh", ["a"], ["b"], name="tanh"),
            helper.make_node("Sin", ["b"], ["y"], name="sin"),
        ],
        {"x": (half, ["n"])},
        {"y": (half, ["n"])},
    )
    x = np.linspace(-3, 1, 500).astype(np.float16)
    recording = Recording(model)
    assert same_bits(recording.run({"x": x}), plain_run(model.SerializeToString(), {"x": x}))
    difference = recording.session.largest_difference
    assert difference is not None
    assert difference < 2e-3
    assert recording.tensors("tanh")["input", 0].dtype == "float16"
    assert same_bits(recording.elements("tanh", "input"), recording.elements("exp", "output"))


def _error(call: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  the runtime decides which error it raises
        call()
    return caught.value


def test_int64_is_recorded_as_it_is() -> None:
    model = model_of(
        [helper.make_node("Shape", ["x"], ["y"], name="shape")], {"x": (FLOAT, ["n", "m"])}, {"y": (INT64, [2])}
    )
    recording = Recording(model)
    recording.run({"x": numbers(2, 5)})
    assert recording.tensors("shape")["output", 0].dtype == "int64"
    assert recording.elements("shape", "output").tolist() == [2, 5]


def test_watched_outputs_are_reported_after_each_chosen_operator() -> None:
    nodes = [helper.make_node("Neg", ["x" if not i else f"v{i}"], [f"v{i + 1}"], name="CDABE"[i]) for i in range(5)]
    model = model_of(nodes, X, {"v5": (FLOAT, ["n"])})
    selection = ModelSelection(layers=("A", "B"), watcher_nodes=("C", "D", "E"))
    plan = DumpPlan(path=Path("dump"), captures="watch", models=(selection,))
    writer = CollectingWriter()
    recorder = make_recorder(plan, writer, NumpyReader.of_plan(plan))
    session = OnnxSession(model, recorder=recorder, plan=plan, model_id=1)
    x = numbers(3)
    assert same_bits(session.run(None, {"x": x}), plain_run(model.SerializeToString(), {"x": x}))
    told = {record.op.op_name: record.payload for record in writer.tensors}
    assert sorted(told) == ["A_To_C", "A_To_D", "B_To_C", "B_To_D"]
    for name, payload in told.items():
        assert payload is not None
        assert same_bits(payload.to_host(), -x if name.endswith("C") else x)
    assert {record.io for record in writer.tensors} == {"output"}
    assert "cannot be seen" in session.notes[0]


def test_the_judge_of_overflows_gets_all_tensors_of_an_operator() -> None:
    seen: dict[str, list[str]] = {}

    def judge(op: OpRecord, taken: Sequence[TensorSnapshot]) -> OverflowStatus | None:
        seen[op.op_name] = [entry.io for entry in taken]
        return OverflowStatus(0x20) if op.op_name == "relu" else None

    plan = DumpPlan(path=Path("dump"), captures="overflow", saved_data="full")
    writer = CollectingWriter()
    recorder = make_recorder(plan, writer, NumpyReader.of_plan(plan), judge)
    session = OnnxSession(chain(), recorder=recorder, plan=plan, model_id=1)
    x = numbers(4)
    session.run(None, {"x": x})
    assert seen == {"add": ["input", "input", "output"], "relu": ["input", "output"], "neg": ["input", "output"]}
    assert [op.op_name for op in writer.ops] == ["relu"]
    assert (recorder.tally.executed, recorder.tally.captured, recorder.tally.skipped) == (3, 1, {"no overflow": 2})
    assert [record.statistics["max"] for record in writer.tensors] == [
        float((x + np.float32(0.5)).max()),
        float((x + np.float32(0.5)).max()),
    ]


def test_a_layer_that_no_operator_is_called_by_is_reported() -> None:
    recording = Recording(chain(), {"models": (ModelSelection(layers=("relu", "Relu")),)})
    recording.run({"x": numbers(3)})
    assert recording.captured == ["relu"]
    assert recording.session.notes == ["models: layer: 'Relu' is not an operator of the model; nearest: 'relu'"]


def test_a_closed_session_does_not_run_unrecorded() -> None:
    recording = Recording(chain(), level="all")
    recording.run({"x": numbers(3)})
    folder = recording.session.ran.folder
    assert folder is not None
    assert folder.is_dir()
    recording.session.close()
    assert not folder.exists()
    with pytest.raises(CaptureStateError, match="the session of graph is closed"):
        recording.run({"x": numbers(3)})
    recording.session.close()
