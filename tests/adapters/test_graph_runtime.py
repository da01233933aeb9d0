"""Shared parts of the graph runtimes' adapters, on a graph of numpy functions: y = sqrt(x * scale), and a loop that
halves y.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.adapters.graph_runtime import (
    Block,
    BlockOperator,
    BlockSlot,
    GraphRun,
    NamedOperator,
    OperatorSelection,
    RunEmitter,
    StepCount,
    UniqueNames,
    live_tensor,
)
from opdump.adapters.host import HostTensor, NumpyReader
from opdump.errors import DumpPathError
from opdump.plan import DumpPlan
from opdump.plan.selection import Exclusion, ModelFilter, ModelSelection, OperatorRange
from opdump.recorder import OperatorRecorder, Recorder, make_recorder
from opdump.records import Frame
from opdump.testing import CollectingWriter

Array = npt.NDArray[Any]
CALLED_AT = (Frame("train.py", 3, "train"),)
SCALE = NamedOperator("Const", "scale", skip="constant")
MUL = NamedOperator("Mul", "mul", task_id=1, arguments={"axis": 0}, kernel="toy::mul")
SQRT = NamedOperator("Sqrt", "sqrt", task_id=2, stack=(Frame("model.py", 7, "forward"),))
HALVE = NamedOperator("Halve", "loop/halve", task_id=3)


@dataclass
class ToyGraph:
    """Run under a plan, and emit what ran when the run is over."""

    plan: dict[str, Any] = field(default_factory=dict)
    times: int = 2

    def __post_init__(self) -> None:
        plan = DumpPlan(path=Path("dump"), **{"saved_data": "full", **self.plan})
        self.writer = CollectingWriter()
        self.recorder: Recorder = make_recorder(plan, self.writer, NumpyReader.of_plan(plan))
        self.emitter = RunEmitter(self.recorder, device_id=5)

    def begin(self, step: int, **settings: Any) -> GraphRun:
        return GraphRun(
            self.emitter, "toy", 4, step, **{"order": itertools.count(), "called_at": CALLED_AT, **settings}
        )

    def run(self, x: Array, step: int = 0, **settings: Any) -> GraphRun:
        run = self.begin(step, **settings)
        scaled = x * np.float32(2)
        y = np.sqrt(scaled)
        run.skip(SCALE)
        run.emit(MUL, [_live("x", x, "x:0")], [_live("product", scaled)])
        run.emit(SQRT, [_live("x", scaled, "mul:0")], [_live("y", y)])
        for _ in range(self.times):
            run.emit(HALVE, [_live("x", y)], [_live("y", y / 2)])
            y = y / 2
        self.recorder.end_step(step)
        return run


def _live(argument: str, array: Array, source: str = "") -> Any:
    return live_tensor(0, argument, HostTensor.of_array(array), source)


def _same(tensors: list[HostTensor | str]) -> list[HostTensor | str]:
    return tensors


def _x() -> Array:
    return np.array([2.0, 8.0], np.float32)


def test_operators_arrive_in_order_with_what_they_read_and_wrote() -> None:
    graph = ToyGraph()
    graph.run(_x())
    assert [(op.op_name, op.order, op.occurrence, op.skip) for op in graph.writer.ops] == [
        ("scale", 0, 0, "constant"),
        ("mul", 1, 0, ""),
        ("sqrt", 2, 0, ""),
        ("loop/halve", 3, 0, ""),
        ("loop/halve", 4, 1, ""),
    ]
    found = [(r.op.op_name, r.io, r.argument, r.source, list(r.payload.to_host())) for r in graph.writer.tensors]  # type: ignore[union-attr]
    assert found[:4] == [
        ("mul", "input", "x", "x:0", [2.0, 8.0]),
        ("mul", "output", "product", "", [4.0, 16.0]),
        ("sqrt", "input", "x", "mul:0", [4.0, 16.0]),
        ("sqrt", "output", "y", "", [2.0, 4.0]),
    ]


def test_a_record_says_what_the_operator_and_the_run_say() -> None:
    graph = ToyGraph()
    graph.run(_x(), step=3)
    _, mul, sqrt, *_ = graph.writer.ops
    assert (mul.net_name, mul.graph_id, mul.device_id, mul.step, mul.task_id) == ("toy", 4, 5, 3, 1)
    assert (mul.op_type, mul.kernel, mul.arguments) == ("Mul", "toy::mul", {"axis": 0})
    assert sqrt.kernel == "Sqrt", "a runtime without its own name uses the type"
    assert (mul.stack, sqrt.stack) == (CALLED_AT, SQRT.stack)


def test_time_stamps_rise_over_all_graphs_and_runs() -> None:
    graph = ToyGraph()
    other = GraphRun(graph.emitter, "other", 9, 0, order=itertools.count())
    for step in range(3):
        graph.run(_x(), step=step)
        other.emit(MUL, (), ())
    graph.recorder.end_step(3)
    stamps = [op.timestamp for op in graph.writer.ops]
    assert len(stamps) == 16  # the constant is listed once
    assert stamps == sorted(set(stamps))


def test_what_leaves_no_data_is_listed_once_and_then_counted() -> None:
    graph = ToyGraph()
    for step in range(3):
        graph.run(_x(), step=step)
    listed = [(op.step, op.skip) for op in graph.writer.ops if op.op_name == "scale"]
    assert listed == [(0, "constant")]
    assert graph.writer.counted == {"constant": 2}
    assert graph.recorder.tally.skipped == {"constant": 3}
    assert [op.order for op in graph.writer.ops if op.op_name == "mul"] == [1, 1, 1], "it keeps its place in the order"


def test_a_reason_of_the_run_stands_for_that_of_the_operator() -> None:
    graph = ToyGraph()
    run = graph.begin(0)
    run.skip(MUL, "not executed")
    run.count_skipped(Counter({"control flow": 2}))
    graph.recorder.end_step(0)
    assert [(op.op_name, op.skip) for op in graph.writer.ops] == [("mul", "not executed")]
    assert graph.writer.counted == {"control flow": 2}


def test_a_mode_that_may_leave_nothing_lists_nothing() -> None:
    graph = ToyGraph({"captures": "overflow"})
    graph.run(_x())
    assert graph.writer.ops == []
    assert graph.recorder.tally.skipped["constant"] == 1


def test_without_an_order_the_place_in_the_graph_is_the_order() -> None:
    graph = ToyGraph()
    graph.run(_x(), order=None)
    assert [op.order for op in graph.writer.ops] == [0, 1, 2, 3, 3]


def test_parts_of_one_step_go_on_counting() -> None:
    graph, order, executions = ToyGraph(), itertools.count(), Counter[str]()
    for _ in range(2):
        run = graph.begin(0, order=order, executions=executions)
        run.emit(HALVE, (), ())
    graph.recorder.end_step(0)
    assert [(op.order, op.occurrence) for op in graph.writer.ops] == [(0, 0), (1, 1)]


def test_a_failed_operator_leaves_what_it_had_been_given() -> None:
    graph = ToyGraph({"captures": "exception", "exception_detail": "norm", "layout": "acl"})
    assert isinstance(graph.recorder, OperatorRecorder)
    run = graph.begin(2)
    run.fail(SQRT, ValueError("negative"), [_live("x", -_x(), "mul:0")], order=7)
    graph.recorder.end_step(2)
    (op,) = {record.op.timestamp: record.op for record in graph.writer.tensors}.values()
    assert (op.op_name, op.step, op.order, op.stack) == ("sqrt", 2, 7, SQRT.stack)
    assert [(r.io, r.slot, list(r.payload.to_host())) for r in graph.writer.tensors] == [("input", 0, [-2.0, -8.0])]  # type: ignore[union-attr]


def test_a_value_that_no_array_stands_for_is_opaque() -> None:
    assert live_tensor(1, "text", "string", "words:0") == (1, "text", "string", "words:0", "opaque")
    assert live_tensor(1, "text", "float32", skip="not executed")[4] == "not executed"
    assert _live("x", _x())[4] == ""


def _selection(**entry: Any) -> Callable[..., OperatorSelection]:
    def make(held: frozenset[str] | None = None, **plan: Any) -> OperatorSelection:
        return OperatorSelection(
            DumpPlan(path=Path("dump"), **plan), ModelFilter((ModelSelection(**entry),) if entry else ()), held
        )

    return make


def test_a_selection_takes_what_the_dump_list_names() -> None:
    selection = _selection(layers=("mul",), name_exclusions=(Exclusion("mul", inputs=frozenset({1})),))()
    assert selection.selects("mul", "Mul")
    assert selection.selects("mul_sqrt", "Fused", ("mul", "sqrt")), "an operator that stands for it"
    assert not selection.selects("sqrt", "Sqrt")
    assert selection.excluded("mul", "Mul", "input") == {1}
    assert not selection.is_empty
    assert _selection()().is_empty


def test_a_selection_takes_what_a_range_holds() -> None:
    ranges = (OperatorRange("mul", "sqrt"),)
    held = ModelFilter((ModelSelection(ranges=ranges),)).in_ranges(["scale", "mul", "sqrt", "loop/halve"])
    selection = _selection(ranges=ranges)(held)
    assert [name for name in ("scale", "mul", "sqrt", "loop/halve") if selection.selects(name, "")] == ["mul", "sqrt"]


@pytest.mark.parametrize(("captures", "wanted"), [("data", (False, True)), ("overflow", (True, True))])
def test_overflow_mode_records_inputs_and_outputs(captures: str, wanted: tuple[bool, bool]) -> None:
    selection = _selection(layers=("mul",))(captures=captures, inputs=False, outputs=True)
    assert (selection.wants_inputs, selection.wants_outputs) == wanted


def test_steps_are_numbered_without_gaps_and_a_failed_run_is_none() -> None:
    steps = StepCount(3)
    with steps.counted() as step:
        assert step == 3
    with pytest.raises(ValueError, match="negative"), steps.counted():
        raise ValueError("negative")
    assert steps.take() == 4
    assert steps.ended == 2


def test_threads_that_run_at_once_have_steps_of_their_own() -> None:
    steps, together = StepCount(0), threading.Barrier(4)

    def run(_: int) -> int:
        with steps.counted() as step:
            together.wait()
            return step

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(run, range(4))) == [0, 1, 2, 3]
    assert steps.ended == 4


@pytest.mark.parametrize(
    "plan",
    [
        {"saved_data": "statistic"},
        {"saved_data": "statistic", "statistic_category": ("max", "md5")},
        {"saved_data": "statistic", "save_kernel_args": True},
        {"saved_data": "full"},
        {"saved_data": "statistic", "captures": "overflow"},
    ],
)
def test_a_block_leaves_what_its_operators_leave_one_by_one(plan: dict[str, Any]) -> None:
    x = np.array([2.0, -1.0, np.nan], np.float32)
    scaled, counts = x * np.float32(2), np.array([], np.int64)
    block = Block(
        [
            BlockOperator(SCALE),
            BlockOperator(
                MUL, (BlockSlot(0, "x", "x:0", 0),), (BlockSlot(0, "product", "", 1), BlockSlot(1, "n", "", 2))
            ),
            BlockOperator(
                SQRT, (BlockSlot(0, "x", "mul:0", 1), BlockSlot(1, "key", "", 3)), (BlockSlot(0, "y", "", 4),)
            ),
            BlockOperator(HALVE, (BlockSlot(0, "x", "sqrt:0", 4),), (BlockSlot(0, "y", "", 4),)),
        ]
    )
    arrays = [x, scaled, counts, "key<fry>", np.sqrt(np.abs(scaled)).astype(np.float16)]

    def tensors() -> list[HostTensor | str]:
        return [each if isinstance(each, str) else HostTensor.of_array(each, stays=True) for each in arrays]

    graphs = ToyGraph(plan), ToyGraph(plan)
    for step in range(3):
        together, single = (graph.begin(step, executions=Counter()) for graph in graphs)
        own, others = tensors(), tensors()
        for _ in range(2):
            together.emit_block(block, own.__getitem__, partial(_same, own))
            for each in block.operators:
                if each.operator.skip:
                    single.skip(each.operator)
                else:
                    lives = [[live_tensor(s, a, others[t], source) for s, a, source, t in side] for side in each[1:]]
                    single.emit(each.operator, *lives)
        for graph in graphs:
            graph.recorder.end_step(step)
    assert graphs[0].recorder.takes_blocks == (plan == {"saved_data": "statistic"})
    facts = [
        [
            (op.op_name, op.step, op.order, op.occurrence, op.stack, op.kernel, op.arguments, op.device_id, op.skip)
            for op in graph.writer.ops
        ]
        for graph in graphs
    ]
    assert facts[0] == facts[1]
    taken = [
        [
            (
                *(each.op.op_name, each.op.step, each.io, each.slot, each.argument, each.source),
                *(each.dtype, each.shape, each.data_size, each.skip, repr(dict(each.statistics))),
            )
            for each in graph.writer.tensors
        ]
        for graph in graphs
    ]
    assert taken[0] == taken[1]
    assert graphs[0].recorder.tally.skipped == graphs[1].recorder.tally.skipped
    assert graphs[0].recorder.tally.executed == graphs[1].recorder.tally.executed
    assert graphs[0].recorder.verdict == graphs[1].recorder.verdict
    times = [op.timestamp for op in graphs[0].writer.ops if not op.skip]
    assert times == sorted(set(times))


def test_last_components_of_names_are_unique_and_stay_what_they_are() -> None:
    names = UniqueNames()
    given = ["a/Conv", "b/Conv", "Conv-op1", "c/Conv", "x/Relu-op0", "y/Relu-op0", "MatMul", "b/Conv"]
    found = [names.of(name) for name in given]
    assert found == [
        "a/Conv", "b/Conv-op1", "Conv-op2", "c/Conv-op3", "x/Relu-op0", "y/Relu-op1", "MatMul", "b/Conv-op1",
    ]  # fmt: skip
    assert [names.of(name) for name in given] == found


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_a_defect_in_reading_one_operator_of_a_block_loses_that_operator(saved_data: str) -> None:
    x = np.array([2.0, 8.0], np.float32)
    block = Block(
        [
            BlockOperator(MUL, (BlockSlot(0, "x", "", 0),), (BlockSlot(0, "y", "", 1),)),
            BlockOperator(SQRT, (BlockSlot(0, "x", "mul:0", 1),), (BlockSlot(0, "y", "", 2),)),
            BlockOperator(HALVE, (BlockSlot(0, "x", "", 0),), (BlockSlot(0, "y", "", 3),)),
        ]
    )
    arrays = [x, x * 2, np.sqrt(x * 2), x / 2]

    def tensor(place: int) -> HostTensor | str:
        assert place != 2, "no such tensor"
        return HostTensor.of_array(arrays[place], stays=True)

    def whole() -> list[HostTensor | str]:
        return [*map(tensor, range(4))]

    graph = ToyGraph({"saved_data": saved_data})
    for step in range(2):
        graph.begin(step, executions=Counter()).emit_block(block, tensor, whole)
        graph.recorder.end_step(step)
    recorder = graph.recorder
    names = [(op.step, op.op_name, op.occurrence) for op in graph.writer.ops if not op.skip]
    assert names == [(0, "mul", 0), (0, "loop/halve", 0), (1, "mul", 0), (1, "loop/halve", 0)]
    assert recorder.failure is None
    assert not recorder.is_over
    assert recorder.tally.skipped["not observed"] == 2
    (told,) = recorder.lost.in_words()
    assert told.startswith(
        "sqrt: 2 executions not recorded, or only in part: AssertionError: no such tensor at test_graph_runtime.py"
    )


def test_running_out_of_memory_ends_the_capture_instead_of_losing_one_operator() -> None:
    graph = ToyGraph()
    run = graph.begin(0)

    def without_memory() -> None:
        raise MemoryError

    with run.recorder.losing(MUL):
        without_memory()
    assert graph.recorder.is_over
    assert "not enough memory" in str(graph.recorder.failure)


def test_a_program_that_is_to_stop_without_its_dump_stops_at_a_defect() -> None:
    graph = ToyGraph({"on_error": "stop"})
    run = graph.begin(0)
    with pytest.raises(DumpPathError, match="defect of opdump"), run.recorder.losing(MUL):
        raise AssertionError("literal")
