"""Node tests and runs: the same bits under full recording, also in a plain program, and live checks that report the same."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import opdump
import opdump.onnx
from opdump.adapters.onnxruntime.model_file import load_model
from opdump.adapters.onnxruntime.model_graph import nodes_of, operators_of_program
from opdump.adapters.onnxruntime.recorded_model import RunOnce
from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.checks import Thresholds
from opdump.checks.nonfinite_lineage import Checked
from opdump.configs.watchpoints import watchpoints_of
from opdump.plan import DumpPlan
from opdump.reports.findings import check_dump
from tests.cli.programs import opdump_anew
from tests.onnx.node_cases import Bits, feeds_of, inputs_of, node_cases
from tests.onnx.recording import FLOAT, Recording, model_of, numbers, plain_run

_STATE: Any = onnxruntime.capi.onnxruntime_pybind11_state
# The runtime's errors have no common class, and its Python part has errors of its own.
REFUSALS: tuple[type[Exception], ...] = (
    *(each for each in vars(_STATE).values() if isinstance(each, type) and issubclass(each, Exception)),
    *(RuntimeError, ValueError, TypeError, KeyError),
)
_LEAST = 1450
_PARTS = 6


def _plain_answers(case: Any, content: bytes) -> tuple[list[tuple[dict[str, Any], list[Any]]], str]:
    """The feeds and outputs of a plain session, or the reason why it cannot load or run the model."""
    found = []
    try:
        for feeds in feeds_of(case):
            onnxruntime.set_seed(1)
            found.append((feeds, plain_run(content, feeds)))
    except REFUSALS as error:
        return [], _reason(error)
    return found, ""


def _reason(error: Exception) -> str:
    text = str(error)
    found = re.search(r"NOT_IMPLEMENTED|INVALID_GRAPH|INVALID_ARGUMENT|RUNTIME_EXCEPTION|NO_SUCHFILE|FAIL\b", text)
    if found is not None:
        return found[0]
    for mark in ("No corresponding Numpy type", "can't be converted to MLDataType", "Required inputs", "Opset"):
        if mark in text:
            return mark
    return type(error).__name__


def _problem(case: Any, content: bytes, feeds: dict[str, Any], plain: list[Any]) -> str:
    onnxruntime.set_seed(1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    recording = Recording(content, session_options=options)
    answer = recording.run(feeds)
    recorder, session = recording.recorder, recording.session
    if not same_bits(answer, plain):
        return "other bits"
    notes = [note for note in session.notes if "are not shown" not in note]
    if notes:
        return f"not recorded: {notes}"
    nodes = {node.name: node for top in session.nodes for node in top.with_bodies}
    if len(nodes) != sum(1 for top in session.nodes for _ in top.with_bodies):
        return "a name twice"
    if recorder.tally.executed != recorder.tally.captured + recorder.tally.skipped.total():
        return (
            f"{recorder.tally.executed} operators, {recorder.tally.captured} captured, {recorder.tally.skipped} skipped"
        )
    told = Counter(op.op_name for op in recording.writer.ops)
    if not told.keys() <= nodes.keys() or any(told[node.name] != 1 for node in session.nodes):
        return f"told of {told}, ran {sorted(nodes)}"
    if recorder.tally.executed != told.total() + recording.writer.counted.total():
        return f"{recorder.tally.executed} operators, told of {told} and {recording.writer.counted}"
    for op in recording.writer.ops:
        if op.skip:
            continue
        node = nodes[op.op_name]
        outer = node.reads.difference(node.inputs)  # read by bodies
        expected = {("input", slot) for slot, value in enumerate((*node.inputs, *outer)) if value}
        expected |= {("output", slot) for slot, value in enumerate(node.outputs) if value}
        tensors = recording.tensors(op.op_name, op.occurrence)
        if set(tensors) != expected:
            return f"{op.op_name}: tensors {sorted(tensors)}, expected {sorted(expected)}"
        for record in tensors.values():
            if (record.payload is None) == (record.skip == ""):
                return f"{record.name}: skip {record.skip!r} and payload {record.payload}"
            if record.payload is not None and record.payload.to_host().shape != record.shape:
                return f"{record.name}: {record.payload.to_host().shape} for {record.shape}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.sampled(_PARTS)
@pytest.mark.parametrize("part", range(_PARTS))
def test_every_node_test_gives_the_same_bits_under_full_recording_and_a_complete_manifest(
    part: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package stamps its newest, not yet final operator set on models that have not changed for years.
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    cases = node_cases()[part::_PARTS]
    ran = 0
    refused: Counter[str] = Counter()
    problems: dict[str, str] = {}
    for case in cases:
        content = case.model.SerializeToString()
        answers, reason = _plain_answers(case, content)
        if reason:
            refused[reason] += 1
            continue
        ran += 1
        for feeds, plain in answers:
            problem = _problem(case, content, feeds, plain)
            if problem:
                problems[case.name] = problem
    with capsys.disabled():
        print(
            f"\n{len(cases)} node tests: ONNX Runtime {onnxruntime.__version__} runs {ran}; the others: {dict(refused)}"
        )
    assert problems == {}
    assert ran >= _LEAST // _PARTS - 30  # those that ONNX Runtime refuses are not spread evenly
    assert ran + refused.total() == len(cases)


PROGRAM = """\
import pickle
import sys
from pathlib import Path

import onnxruntime

folder = Path(sys.argv[1])
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
answers = {}
for path in sorted(folder.glob("*.onnx")):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for number, inputs in enumerate(pickle.loads(path.with_suffix(".inputs").read_bytes())):
        onnxruntime.set_seed(1)
        feeds = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(*value) if isinstance(value, tuple) else value
            for name, value in inputs.items()
        }
        answers[path.stem, number] = session.run(None, feeds)
(folder / "answers").write_bytes(pickle.dumps(answers))
"""
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_KEPT = frozenset(onnx.TensorProto.DataType.values()) - {
    *(onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING),
    *(number for name, number in onnx.TensorProto.DataType.items() if re.search(r"FLOAT[468]|BFLOAT|INT[24]$", name)),
}
"""Types that a dump keeps; narrower floats are stored as float32."""


@dataclass(frozen=True)
class PlainRun:
    """A run of a node test without opdump: its answer, and the operators of the model as the runtime optimised it."""

    answer: list[Any]
    types: Counter[str]
    outputs: tuple[int, ...]
    """The numbers of the element types of the outputs; 0 for another kind of value."""


def plain_runs(case: Any, folder: Path) -> list[PlainRun]:
    """A run of each data set of a case, none if the runtime cannot run it. What a program needs for the same is in `folder` afterwards."""
    path = folder / f"{case.name}.onnx"
    path.write_bytes(case.model.SerializeToString())
    every = [
        {name: tuple(value) if isinstance(value, Bits) else value for name, value in inputs.items()}
        for inputs in inputs_of(case)
    ]
    path.with_suffix(".inputs").write_bytes(pickle.dumps(every))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimised")
    answers = []
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for feeds in feeds_of(case):
            onnxruntime.set_seed(1)
            answers.append(session.run(None, feeds))
    except REFUSALS:
        path.unlink()
        return []
    optimised = onnx.load(folder / "optimised").graph
    types = Counter(node.op_type for node in optimised.node if node.op_type != "Constant")
    outputs = tuple(value.type.tensor_type.elem_type for value in optimised.output)
    return [PlainRun(answer, types, outputs) for answer in answers]


def missing_in_dump(run: PlainRun, executions: list[opdump.Execution]) -> str:
    """What the dump lacks of a run: an operator, or a number of the answer."""
    found = Counter(execution.op.op_type for execution in executions)
    if not _CONTROL.isdisjoint(run.types):
        return "" if found else f"nothing for {run.types}"
    if found != run.types:
        return f"{found} for {run.types}"
    records = [record for execution in executions for record in execution.outputs.values() if not record.skip]
    made = {(array.shape, array.tobytes()) for array in (record.numpy() for record in records)}
    for value, number in zip(run.answer, run.outputs, strict=True):
        if run.types and number in _KEPT and value.size and (value.shape, value.tobytes()) not in made:
            return f"no operator made the answer {value}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.sampled(_PARTS)
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_plain_program_gives_the_same_bits_under_opdump_run_and_every_operator_is_recorded(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    plain: dict[tuple[str, int], PlainRun] = {}
    for case in sorted(node_cases()[part::_PARTS], key=lambda case: f"{case.name}.onnx"):
        plain |= {(case.name, number): run for number, run in enumerate(plain_runs(case, tmp_path))}
    (tmp_path / "program.py").write_text(PROGRAM)
    done = opdump_anew("run", "--full", "--path", "dump", "program.py", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    assert answers.keys() == plain.keys()
    executions: dict[int, list[opdump.Execution]] = {}
    for execution in opdump.open(tmp_path / "dump").executions():
        executions.setdefault(execution.op.step, []).append(execution)
    problems = {}
    for step, (key, run) in enumerate(plain.items()):
        problem = missing_in_dump(run, executions.get(step, []))
        if problem or not same_bits(answers[key], run.answer):
            problems[key] = problem or "other bits"
    assert problems == {}
    assert len(plain) >= _LEAST // _PARTS - 30


def operators(model: ModelProto) -> dict[str, str]:
    return operators_of_program(model, nodes_of(model))


def graph(nodes: list[Any], functions: tuple[Any, ...] = ()) -> ModelProto:
    model = model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})
    model.functions.extend(functions)
    return model


def function(name: str, op_type: str, domain: str) -> Any:
    body = [helper.make_node(op_type, ["a"], ["b"], domain=domain)]
    return helper.make_function("own", name, ["a"], ["b"], body, [helper.make_opsetid("", 21)])


@pytest.mark.parametrize(
    ("domain", "op_type", "found"),
    [
        ("", "Tanh", {}),
        ("ai.onnx", "Tanh", {}),
        ("ai.onnx.ml", "Scaler", {}),
        ("com.microsoft", "Gelu", {}),
        ("com.microsoft", "PythonOp", {"it": "com.microsoft::PythonOp"}),
        ("ai.onnx.contrib", "Ask", {"it": "ai.onnx.contrib::Ask"}),
        ("org.pytorch.aten", "ATen", {"it": "org.pytorch.aten::ATen"}),
        ("mine", "Count", {"it": "mine::Count"}),
    ],
)
def test_an_operator_of_an_unknown_domain_or_that_calls_python_is_the_programs(
    domain: str, op_type: str, found: dict[str, str]
) -> None:
    assert operators(graph([helper.make_node(op_type, ["x"], ["y"], name="it", domain=domain)])) == found


def test_a_function_is_the_programs_where_something_in_it_is() -> None:
    for inner, found in (("", {}), ("mine", {"it": "mine::Tanh"})):
        # The outer function calls the inner one, and is listed first.
        functions = (function("Outer", "Inner", "own"), function("Inner", "Tanh", inner))
        model = graph([helper.make_node("Outer", ["x"], ["y"], name="it", domain="own")], functions)
        assert operators(model) == found


def test_a_control_operator_is_the_programs_where_a_body_has_one_of_it() -> None:
    branches: dict[str, Any] = {
        name: helper.make_graph(
            [helper.make_node("Count", ["x"], [name], domain=domain)],
            name,
            [],
            [helper.make_tensor_value_info(name, FLOAT, None)],
        )
        for name, domain in (("then_branch", ""), ("else_branch", "mine"))
    }
    node = helper.make_node("If", ["c"], ["y"], name="it", **branches)
    assert operators(graph([node])) == {"it": "mine::Count"}


def test_the_rest_of_a_model_computes_the_same_from_what_they_gave() -> None:
    model = load_model(
        model_of(
            [
                helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
                helper.make_node("Exp", ["a"], ["b"], name="exp"),
                helper.make_node("Add", ["b", "w"], ["y"], name="add"),
            ],
            {"x": (FLOAT, [4])},
            {"y": (FLOAT, [4])},
            {"w": numbers(4, seed=1)},
        )
    )
    nodes = nodes_of(model.proto)
    once = RunOnce({"exp": "mine::Exp"}, (nodes[1],))
    plain = onnxruntime.InferenceSession(model.with_outputs(["b"]), providers=["CPUExecutionProvider"])
    feeds = {"x": numbers(4)}
    assert once.refusal(model, plain) == ""
    answer, given, tensors = once.run(plain, ["y"], feeds, None)
    rest = onnxruntime.InferenceSession(
        once.rest_of(model, nodes, ["a", "y"], plain), providers=["CPUExecutionProvider"]
    )
    assert [value.name for value in rest.get_inputs()] == ["x", "b"]
    a, y = rest.run(["a", "y"], {**feeds, **given})
    assert np.allclose(np.exp(a), given["b"], rtol=1e-6)
    assert np.array_equal(y, answer[0])
    assert list(tensors) == ["b"]


WATCH = (
    "weight_too_large abs_mean_gt=0.1",
    "weight_not_changed",
    "activation_range range_start_inclusive=-0.5 range_end_inclusive=0.5 range_percentage_gt=1",
    "tensor_too_small abs_mean_lt=0.9",
)


def model() -> onnx.ModelProto:
    """A clip that hides infinities of a division."""
    generator = np.random.default_rng(0)
    constants = {"w": generator.normal(size=(4, 4)), "zero": np.zeros(4), "low": np.array(-5.0), "high": np.array(5.0)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("Exp", ["t"], ["e"], "exp"),
        helper.make_node("Div", ["e", "zero"], ["d"], "quotient"),
        helper.make_node("Clip", ["d", "low", "high"], ["y"], "clip"),
    ]
    real = onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, real, [2, 4]) for name in "xy")
    kept = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "Net", [x], [y], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def told(checked: Checked) -> list[dict[str, Any]]:
    return [{**asdict(hit), "timestamp": 0} for hit in checked.hits]


@pytest.mark.parametrize("options", [{"saved_data": "statistic"}, {"saved_data": "full", "sample_num": 3}])
def test_they_say_what_is_said_of_a_dump_of_tensors(options: dict[str, Any], tmp_path: Path) -> None:
    reports = []
    for plan in (
        DumpPlan(path=tmp_path / "live", checks=WATCH, **options),
        DumpPlan(path=tmp_path / "full", saved_data="full"),
    ):
        with opdump.onnx.session(model(), plan) as session:
            for step in range(2):
                session.run(None, {"x": np.full((2, 4), step + 0.1, np.float32)})
        reports.append(session.report)
    assert reports[0] is not None
    live = reports[0].checked
    assert live is not None
    dumped = check_dump(opdump.open(tmp_path / "full"), Thresholds(), watchpoints=watchpoints_of(WATCH))
    assert told(live) == told(dumped)
    assert {hit.condition for hit in live.hits} == {each.split()[0] for each in WATCH}
    assert live.histories == dumped.histories
    assert [place.op_type for history in live.histories for place in history.killed] == ["Clip", "Clip"]
    if "sample_num" in options:  # only what was requested is dumped
        sizes = {record.numpy().size for record in opdump.open(tmp_path / "live") if record.shape}
        assert sizes == {3}
