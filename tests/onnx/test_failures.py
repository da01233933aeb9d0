"""Exception mode, recordings that are killed, and dumps that can no longer be written."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import GraphProto, ModelProto, TensorProto, helper

import opdump
from opdump.adapters.host import NumpyReader
from opdump.adapters.onnxruntime.recorded_model import NodeEmitter
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.commands import main
from opdump.errors import DumpPathError
from opdump.onnx.recording import ModelRecording
from opdump.plan import DumpPlan, StepSet
from opdump.recorder import FailureRecorder, LiveTensor, make_recorder
from opdump.records import OpRecord
from opdump.testing import CollectingWriter
from tests.onnx.recording import FLOAT, INT64, model_of, numbers, plain_run


class ListeningRecorder(FailureRecorder):
    """Also keeps the failures that an adapter reported."""

    def __init__(self, plan: DumpPlan) -> None:
        self.filed = CollectingWriter()
        super().__init__(plan, self.filed, NumpyReader.of_plan(plan))
        self.failed: list[tuple[OpRecord, BaseException, list[LiveTensor]]] = []

    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        given = list(inputs)
        self.failed.append((op, error, given))
        super().failed_op(op, error, given, opened)


def failing_run(model: onnx.ModelProto, feeds: dict[str, Any], **plan: Any) -> tuple[ListeningRecorder, OnnxSession]:
    """Run `model` in exception mode; its error must equal that of a plain run."""
    settings = DumpPlan(path=Path("dump"), captures="exception", **plan)
    recorder = ListeningRecorder(settings)
    session = OnnxSession(model, recorder=recorder, plan=settings, model_id=1)
    with pytest.raises(Exception) as plain:  # noqa: PT011  the runtime decides which error it raises
        plain_run(model.SerializeToString(), feeds)
    with pytest.raises(type(plain.value)) as found:
        session.run(None, feeds)
    assert str(found.value) == str(plain.value)
    return recorder, session


def gathers(first: str, second: str) -> onnx.ModelProto:
    """Two operators of the same type; the second gets the indices that are fed."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Gather", ["a", "good"], ["b"], name=first),
        helper.make_node("Gather", ["b", "i"], ["c"], name=second),
        helper.make_node("Neg", ["c"], ["y"], name="neg"),
    ]
    return model_of(
        nodes, {"x": (FLOAT, ["n"]), "i": (INT64, ["m"])}, {"y": (FLOAT, None)}, {"good": np.array([0, 1, 2], np.int64)}
    )


BAD: dict[str, Any] = {"x": np.array([1, -2, 3, 4], np.float32), "i": np.array([1, 9], np.int64)}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("one", "two", "two"), ("", "", "Gather_2"), ("Gather_2", "", "Gather_2_")],
)
def test_the_failing_operator_is_found_whatever_it_is_called(first: str, second: str, expected: str) -> None:
    recorder, session = failing_run(gathers(first, second), BAD)
    ((op, error, inputs),) = recorder.failed
    assert (op.op_name, op.op_type, op.step, op.order) == (expected, "Gather", 0, 2)
    assert "out of data bounds" in str(error)
    assert [(slot, argument, source) for slot, argument, _, source, _ in inputs] == [
        (0, "data", f"{first or 'Gather_1'}:0"),
        (1, "indices", "i:0"),
    ]
    found = {record.slot: record.payload.to_host() for record in recorder.filed.tensors if record.payload}
    np.testing.assert_array_equal(found[0], np.array([1, 0, 3], np.float32))
    np.testing.assert_array_equal(found[1], [1, 9])
    assert session.notes == []


def test_shapes_that_do_not_match_are_found() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("MatMul", ["a", "z"], ["y"], name="matmul"),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["a", "b"]), "z": (FLOAT, ["c", "d"])}, {"y": (FLOAT, None)})
    recorder, _ = failing_run(model, {"x": numbers(2, 3), "z": numbers(4, 2)})
    ((op, _, inputs),) = recorder.failed
    assert op.op_name == "matmul"
    assert [tensor.shape for _, _, tensor, _, _ in inputs] == [(2, 3), (4, 2)]


def test_an_operator_that_fails_within_a_function_is_the_function() -> None:
    model = model_of(
        [
            helper.make_node("Abs", ["x"], ["a"], name="abs"),
            helper.make_node("Pick", ["a", "i"], ["b"], name="pick", domain="own"),
            helper.make_node("Neg", ["b"], ["y"], name="neg"),
        ],
        {"x": (FLOAT, ["n"]), "i": (INT64, ["m"])},
        {"y": (FLOAT, None)},
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    body = [helper.make_node("Gather", ["data", "place"], ["picked"])]
    model.functions.append(
        helper.make_function("own", "Pick", ["data", "place"], ["picked"], body, model.opset_import[:1])
    )
    recorder, _ = failing_run(model, BAD)
    ((op, _, inputs),) = recorder.failed
    assert op.op_name == "pick"
    assert [argument for _, argument, _, _, _ in inputs] == ["data", "place"]


def test_an_operator_that_fails_within_a_loop_is_the_loop() -> None:
    loop = loop_of([helper.make_node("Gather", ["x", "i"], ["q"], name="inner")])
    model = model_of([loop], {"x": (FLOAT, ["n"]), "i": (INT64, ["m"]), "trips": (INT64, [])}, {"y": (FLOAT, None)})
    recorder, _ = failing_run(model, {**BAD, "trips": np.array(2, np.int64)})
    ((op, error, inputs),) = recorder.failed
    assert op.op_name == "loop"
    assert "inner" in str(error)
    assert [(slot, argument) for slot, argument, _, _, _ in inputs] == [(0, "M")]


def loop_of(body: list[onnx.NodeProto]) -> onnx.NodeProto:
    graph = helper.make_graph(
        [*body, helper.make_node("Identity", ["go"], ["on"], name="condition")],
        "body",
        [
            helper.make_tensor_value_info("trip", INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("q", FLOAT, None),
        ],
    )
    return helper.make_node("Loop", ["trips", ""], ["y"], name="loop", body=graph)


def test_what_was_fed_wrongly_is_no_failure_of_an_operator() -> None:
    recorder, session = failing_run(gathers("one", "two"), {**BAD, "x": np.zeros((2, 2), np.float32)})
    assert recorder.failed == []
    assert "outside of every operator" in session.notes[0]


def test_a_run_that_succeeds_or_is_not_wanted_leaves_nothing() -> None:
    plan = DumpPlan(path=Path("dump"), captures="exception", steps=StepSet.of(0))
    recorder = ListeningRecorder(plan)
    session = OnnxSession(gathers("one", "two"), recorder=recorder, plan=plan, model_id=1)
    session.run(None, {**BAD, "i": np.array([0], np.int64)})
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, BAD)
    assert recorder.failed == []


LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
}
FEEDS = {"x": np.linspace(-1, 1, 4, dtype=np.float32)}
STEPS = 3


def model() -> ModelProto:
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    nodes.append(helper.make_node("Exp", ["b"], ["y"]))
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


def record(root: Path, layout: str) -> None:
    """Run the model in each step of a recording."""
    recording = ModelRecording(DumpPlan(path=root, **LAYOUTS[layout]))
    recording.load(model(), 1)
    for _ in range(STEPS):
        recording.run(1, None, FEEDS)
    recording.close()


PROGRAM = """
import itertools, os, signal, sys
from pathlib import Path
from tests.onnx.test_failures import record

root, layout, points = Path(sys.argv[1]), sys.argv[2], [int(text) for text in sys.argv[3:]]
for point in points:
    child = os.fork()
    if child == 0:
        replace, numbers = os.replace, itertools.count(1)

        def counting(*args, **kwargs):
            replace(*args, **kwargs)
            if next(numbers) == point:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = counting
        record(root / str(point), layout)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_killed_recording_did_not_finish_is_left_out_or_reported(tmp_path: Path, layout: str) -> None:
    record(tmp_path / "whole", layout)
    whole = opdump.open(tmp_path / "whole")
    points = (4, 7, 9)
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), layout, *map(str, points)],
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=900,
    )
    killed = 0
    for point in points:
        root = tmp_path / str(point)
        catalog = opdump.open(root)
        if all(run.complete for run in catalog.runs) and catalog.steps == whole.steps:
            continue
        killed += 1
        assert not any(run.complete for run in catalog.runs)
        for step in catalog.steps:
            names = [op.op_name for op in catalog.ops(step=step)]
            if names != [op.op_name for op in whole.ops(step=step)]:
                assert any(f"step {step} was not finished" in str(problem) for problem in catalog.problems)
            for tensor in catalog.tensors(step=step):
                assert tensor.payload is None or tensor.payload.to_host().shape == tensor.shape
        shown = CliRunner().invoke(main, ["show", str(root)], catch_exceptions=False)
        assert "interrupted" in shown.output
        record(root, layout)
        assert not list(root.rglob("*.part"))
        assert any(run.complete for run in opdump.open(root, run="all").runs)
    assert killed


def _with_a_directory_in_place_of_the_graph(root: Path, on_error: Any) -> ModelRecording:
    recording = ModelRecording(DumpPlan(path=root, on_error=on_error, **LAYOUTS["acl"]))
    place: Any = recording.writer
    (root / place.time / "ge_proto_00001_Build.txt").mkdir(parents=True)
    recording.load(model(), 1)
    return recording


def test_a_graph_that_cannot_be_written_ends_the_dump_and_no_program(tmp_path: Path) -> None:
    recording = _with_a_directory_in_place_of_the_graph(tmp_path, "continue")
    for _ in range(STEPS):
        np.testing.assert_array_equal(
            recording.run(1, None, FEEDS)[0], plain_run(model().SerializeToString(), FEEDS)[0]
        )
    report = recording.close()
    assert "ge_proto_00001_Build.txt: cannot be written" in report.failure
    assert not any(run.complete for run in opdump.open(tmp_path).runs)
    assert not list(tmp_path.rglob("*.part"))


def test_with_stop_a_graph_that_cannot_be_written_is_raised(tmp_path: Path) -> None:
    recording = _with_a_directory_in_place_of_the_graph(tmp_path, "stop")
    with pytest.raises(DumpPathError, match=r"ge_proto_00001_Build\.txt: cannot be written"):
        recording.run(1, None, FEEDS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_defect_in_reading_one_node_loses_that_node_and_not_the_dump(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NodeEmitter.live

    def live(emitter: NodeEmitter, slots: Any, tensors: Any) -> Any:
        assert all(value != "b" for _, _, value, _ in slots), "literal"
        return real(emitter, slots, tensors)

    monkeypatch.setattr(NodeEmitter, "live", live)
    recording = ModelRecording(DumpPlan(path=tmp_path, **LAYOUTS[layout]))
    recording.load(model(), 1)
    answers = [recording.run(1, None, FEEDS) for _ in range(STEPS)]
    report = recording.close()
    np.testing.assert_allclose(answers[-1][0], np.exp(-np.abs(FEEDS["x"])), rtol=1e-6)
    assert not report.failure
    assert report.steps == (0, 1, 2)
    assert report.skipped["not observed"] == 2 * STEPS
    assert {record.op.op_type for record in opdump.open(tmp_path).tensors(step=2)} == {"Abs"}
    (told,) = [text for text in report.warnings if "defect" in text]
    assert "AssertionError: literal" in told


node = helper.make_node
Calls = list[tuple[str, tuple[str, ...]]]


class FullDisk(CollectingWriter):
    """Accepts `room` steps, and fails from then on."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.asked = 0

    def write_payload(self, record: Any) -> str:
        self._write()
        return super().write_payload(record)

    def write_step(self, step: int, ops: Any, *rest: Any) -> None:
        self._write()
        super().write_step(step, ops, *rest)

    def _write(self) -> None:
        self.asked += 1
        if len(self.steps) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls to ONNX Runtime: created sessions, and the values that each run returns."""
    made: Calls = []
    run, run_bound, make = (
        onnxruntime.InferenceSession.run,
        onnxruntime.InferenceSession.run_with_iobinding,
        onnxruntime.InferenceSession.__init__,
    )

    def counted_run(session: Any, names: Any, *rest: Any) -> Any:
        made.append(("run", tuple(names or [each.name for each in session.get_outputs()])))
        return run(session, names, *rest)

    def counted_bound(session: Any, binding: Any, *rest: Any) -> Any:
        made.append(("run bound", tuple(each.name for each in session.get_outputs())))
        return run_bound(session, binding, *rest)

    def counted_make(session: Any, *args: Any, **kwargs: Any) -> None:
        made.append(("session", ()))
        make(session, *args, **kwargs)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", counted_run)
    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", counted_bound)
    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", counted_make)
    return made


def chain() -> ModelProto:
    nodes = [node("Abs", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Exp", ["b"], ["y"])]
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


def branches() -> ModelProto:
    def body(op_type: str) -> GraphProto:
        made = node(op_type, ["x"], [f"of_{op_type}"])
        return helper.make_graph([made], op_type, [], [helper.make_tensor_value_info(f"of_{op_type}", FLOAT, [4])])

    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["y"], then_branch=body("Neg"), else_branch=body("Abs")),
    ]
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


def halves() -> ModelProto:
    nodes = [
        node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        node("Exp", ["half"], ["e"]),
        node("Cast", ["e"], ["y"], to=FLOAT),
    ]
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


@pytest.mark.parametrize("captures", ["data", "overflow"])
@pytest.mark.parametrize("saved", ["tensor", "statistic"])
@pytest.mark.parametrize("make", [chain, branches, halves])
def test_once_the_dump_is_lost_a_run_is_the_plain_run_of_the_program(
    make: Any, saved: Any, captures: Any, calls: Calls
) -> None:
    model = make()
    plan = DumpPlan(path=Path("dump"), saved_data=saved, captures=captures)
    writer = FullDisk(room=1 if captures == "data" else 0)
    recorder = make_recorder(plan, writer, NumpyReader.of_plan(plan))
    session = OnnxSession(model, recorder=recorder, plan=plan, model_id=1)
    feeds = [{"x": numbers(4, seed=seed) + (1e30 if captures == "overflow" else 0)} for seed in range(5)]
    if captures == "overflow":
        feeds = [{"x": np.full(4, np.inf, np.float32)} for _ in range(5)]
    answers = [session.run(None, each) for each in feeds[:2]]
    assert recorder.is_over
    asked, told = writer.asked, recorder.tally.executed
    answers.append(session.run(None, feeds[2]))  # creates the plain session
    calls.clear()
    answers += [session.run(None, each) for each in feeds[3:]]
    assert calls == [("run", ("y",))] * 2, "only the program's own outputs are requested"
    assert (writer.asked, recorder.tally.executed) == (asked, told)
    for answer, fed in zip(answers, feeds, strict=True):
        assert same_bits(answer, plain_run(model.SerializeToString(), fed))


def test_a_run_in_pieces_is_not_repeated_for_a_dump_that_was_lost_in_it(calls: Calls) -> None:
    plan = DumpPlan(path=Path("dump"), saved_data="tensor")
    writer = FullDisk(room=0)
    recorder = make_recorder(plan, writer, NumpyReader.of_plan(plan))
    session = OnnxSession(chain(), recorder=recorder, plan=plan, model_id=1, memory_limit=1)
    calls.clear()
    (answer,) = session.run(None, {"x": numbers(4)})
    assert recorder.is_over
    assert [kind for kind, _ in calls].count("run bound") == 1
    assert same_bits([answer], plain_run(chain().SerializeToString(), {"x": numbers(4)}))


def test_operators_after_the_one_whose_file_failed_are_not_reported() -> None:
    plan = DumpPlan(path=Path("dump"), saved_data="tensor", inputs=False)
    recorder = make_recorder(plan, FullDisk(room=0), NumpyReader.of_plan(plan))
    told: list[OpRecord] = []
    before = recorder.before_op

    def listening(op: OpRecord, inputs: Any, changes: Any = None) -> OpRecord:
        told.append(op)
        return before(op, inputs)

    recorder.before_op = listening  # type: ignore[method-assign]
    session = OnnxSession(chain(), recorder=recorder, plan=plan, model_id=1)
    session.run(None, {"x": numbers(4)})
    session.run(None, {"x": numbers(4)})
    assert [op.op_type for op in told] == ["Abs"]
