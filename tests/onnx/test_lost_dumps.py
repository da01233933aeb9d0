"""If the dump of an ONNX model can no longer be written, the program continues, and no operator is inspected for it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

from opdump.adapters.host import NumpyReader
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.plan import DumpPlan
from opdump.recorder import make_recorder
from opdump.records import OpRecord
from opdump.testing import CollectingWriter
from tests.onnx.recording import FLOAT, model_of, numbers, plain_run

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


def test_operators_behind_the_one_whose_file_failed_are_not_told() -> None:
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
