"""Programs with sessions of their own: each keeps its answers bit for bit, and its runs are in the dump."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper

import opdump
from opdump import Execution
from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from tests.onnx.recording import FLOAT, Array, model_of

ROWS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
CPU = ["CPUExecutionProvider"]
NODES = ("product", "bounded", "shares")


def network(name: str = "network", axis: int = -1) -> ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["m"], NODES[0]),
        helper.make_node("Relu", ["m"], ["r"], NODES[1]),
        helper.make_node("Softmax", ["r"], ["y"], NODES[2], axis=axis),
    ]
    size = (FLOAT, [None, 4])
    return model_of(nodes, {"x": size}, {"y": size}, {"weight": WEIGHT}, name=name)


def opened(model: ModelProto | None = None, **options: Any) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession((model or network()).SerializeToString(), providers=CPU, **options)


def executions(path: Path, name: str | None = None) -> list[Execution]:
    return [run for run in opdump.open(path).executions() if name in (None, run.op.op_name)]


def run_plainly() -> list[Array]:
    return [opened().run(None, {"x": ROWS})[0]]


def run_by_ort_values() -> list[Array]:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(ROWS)
    return [opened().run_with_ort_values(["y"], {"x": value})[0].numpy()]


def run_by_bound_array() -> list[Array]:
    session = opened()
    binding = session.io_binding()
    binding.bind_cpu_input("x", ROWS)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return [array.copy() for array in binding.copy_outputs_to_cpu()]


def run_in_the_memory_of_the_input() -> list[Array]:
    """As programs do that keep a cache: each run reads what the last one wrote."""
    session, rows = opened(), ROWS.copy()
    binding = session.io_binding()
    place = ("cpu", 0, np.float32, rows.shape, rows.ctypes.data)
    binding.bind_input("x", *place)
    binding.bind_output("y", *place)
    for _ in range(2):
        session.run_with_iobinding(binding)
    return [rows]


def run_by_bound_value() -> list[Array]:
    session = opened()
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.zeros_like(ROWS))
    binding.clear_binding_inputs()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(ROWS))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return [binding.get_outputs()[0].numpy()]


def run_in_the_background() -> list[Array]:
    session, found, is_done = opened(), list[Array](), threading.Event()

    def finished(results: Sequence[Array], _: object, __: str) -> None:
        found.extend(results)
        is_done.set()

    session.run_async(["y"], {"x": ROWS}, finished, None)
    assert is_done.wait(60)
    return [array.copy() for array in found]


def run_in_a_subclass() -> list[Array]:
    class Counting(onnxruntime.InferenceSession):  # type: ignore[misc]  # the runtime has no types
        runs = 0

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.runs += 1
            return super().run(*args, **kwargs)

    session = Counting(network().SerializeToString(), providers=CPU)
    answer = session.run(output_names=["y"], input_feed={"x": ROWS})
    assert session.runs == 1
    return list(answer)


def run_after_other_providers() -> list[Array]:
    session = opened()
    session.set_providers(CPU)
    return list(session.run([], {"x": ROWS}))


def run_with_options() -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_free_dimension_override_by_name("rows", 3)
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(opened(sess_options=options).run(None, {"x": ROWS}))


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (run_plainly, 1),
        (run_by_ort_values, 1),
        (run_by_bound_array, 1),
        (run_in_the_memory_of_the_input, 2),
        (run_by_bound_value, 1),
        (run_in_the_background, 1),
        (run_in_a_subclass, 1),
        (run_after_other_providers, 1),
        (run_with_options, 1),
    ],
)
def test_a_run_is_recorded_and_its_answer_stays(program: Callable[[], list[Array]], steps: int, tmp_path: Path) -> None:
    plain = program()
    with opdump.capture(path=tmp_path, saved_data="full", framework="onnxruntime") as dump:
        assert same_bits(program(), plain)
    assert dump.report is not None
    assert not dump.report.warnings
    assert dump.report.steps == tuple(range(steps))
    runs = executions(tmp_path)
    assert [run.op.op_name for run in runs] == [*NODES] * steps
    assert same_bits(runs[0].inputs[0].numpy(), ROWS)
    assert same_bits(runs[-1].outputs[0].numpy(), plain[0])
    assert same_bits(program(), plain)


@pytest.mark.parametrize("weights_outside", [False, True])
def test_a_model_file_that_is_removed_after_loading_is_recorded(weights_outside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save_model(
        network(),
        folder / "removed.onnx",
        save_as_external_data=weights_outside,
        location="weights" if weights_outside else None,
        size_threshold=0,
    )
    plain = run_plainly()
    with opdump.capture(path=tmp_path / "dump", saved_data="full", framework="onnxruntime") as dump:
        session = onnxruntime.InferenceSession(folder / "removed.onnx", providers=CPU)
        (folder / "removed.onnx").unlink()
        assert same_bits(session.run(None, {"x": ROWS}), plain)
    assert dump.report is not None
    assert dump.report.captured == len(NODES)
    product = executions(tmp_path / "dump")[0]
    assert same_bits(product.inputs[1].numpy(), WEIGHT)


def test_sessions_of_several_threads_have_steps_of_their_own(tmp_path: Path) -> None:
    sessions = [opened(network(f"network{number}", axis)) for number, axis in enumerate((0, 1, -1))]
    plain = [session.run(None, {"x": ROWS})[0] for session in sessions]
    found: dict[int, Array] = {}

    def run(number: int) -> None:
        for _ in range(3):
            found[number] = sessions[number].run(None, {"x": ROWS})[0]

    with opdump.capture(path=tmp_path, saved_data="full", framework="onnxruntime") as dump:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert same_bits([found[number] for number in range(3)], plain)
    assert dump.report is not None
    assert dump.report.steps == tuple(range(9))
    results = [run.outputs[0].numpy().tobytes() for run in executions(tmp_path, "shares")]
    assert sorted(results) == sorted(array.tobytes() for array in plain * 3)


def test_steps_that_the_program_ends_contain_several_runs(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, framework="onnxruntime", steps="manual") as dump:
        session = opened()
        for _ in range(2):
            session.run(None, {"x": ROWS})
            session.run(None, {"x": ROWS + 1})
            dump.step()
    places = [(run.op.step, run.op.order, run.op.occurrence) for run in executions(tmp_path, "bounded")]
    assert places == [(0, 1, 0), (0, 4, 1), (1, 1, 0), (1, 4, 1)]


def test_no_second_session_is_opened_before_a_selected_step(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, framework="onnxruntime", iteration="2") as dump:
        session = opened()
        loaded = []
        for _ in range(4):
            session.run(None, {"x": ROWS})
            loaded.append(dump.operators)
    assert loaded == [0, 0, 3, 3]
    assert dump.report is not None
    assert dump.report.steps == (2,)


def test_the_reason_for_a_missing_step_counts_the_runs(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, framework="onnxruntime", iteration="7") as dump:
        session = opened()
        for _ in range(3):
            session.run(None, {"x": ROWS})
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert "the program ended steps 0 to 2" in dump.report.nothing.reason


def test_a_model_in_the_runtime_format_runs_and_the_report_says_why_it_is_not_recorded(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.log_severity_level = 4
    opened(sess_options=options)
    with opdump.capture(path=tmp_path / "dump", framework="onnxruntime") as dump:
        session = onnxruntime.InferenceSession(tmp_path / "model.ort", providers=CPU)
        answer = session.run(None, {"x": ROWS})
    assert same_bits(answer, run_plainly())
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert "is in ORT format, which contains no ONNX graph" in dump.report.nothing.reason


def test_the_error_of_a_run_stays_and_the_failed_operator_is_recorded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], "taken", axis=0)]
    model = model_of(nodes, {"x": (FLOAT, [None, 4]), "i": (onnx.TensorProto.INT64, [1])}, {"y": (FLOAT, None)})
    feeds = {"x": ROWS, "i": np.array([7])}
    with pytest.raises(Exception, match="indices element out of data bounds") as plain:
        opened(model).run(None, feeds)
    with (
        opdump.capture(path=tmp_path, on_exception=True, framework="onnxruntime") as dump,
        pytest.raises(type(plain.value)) as error,
    ):
        opened(model).run(None, feeds)
    assert str(error.value) == str(plain.value)
    assert dump.report is not None
    assert dump.report.captured == 1
    assert [run.op.op_name for run in executions(tmp_path)] == ["taken"]


def test_a_session_of_an_optimised_level_is_recorded_with_the_nodes_that_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["m"], "product"),
        helper.make_node("Add", ["m", "bias"], ["y"], "shift"),
    ]
    size = (FLOAT, [3, 4])
    model = model_of(nodes, {"x": size}, {"y": size}, {"weight": WEIGHT, "bias": WEIGHT[0]})
    plain = opened(model).run(None, {"x": ROWS})
    with opdump.capture(path=tmp_path, saved_data="full", framework="onnxruntime"):
        assert same_bits(opened(model).run(None, {"x": ROWS}), plain)
    (fused,) = executions(tmp_path)
    assert fused.op.op_type in ("Gemm", "FusedGemm")
    assert same_bits(fused.outputs[0].numpy(), plain[0])


def test_torch_and_a_session_are_in_one_dump_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.from_numpy(ROWS)

    def program() -> Any:
        session, found = opened(), []
        for _ in range(2):
            fed = torch.relu(rows)
            found.append(torch.from_numpy(session.run(None, {"x": fed.numpy()})[0]).exp().numpy())
        return found

    plain = program()
    with opdump.capture(path=tmp_path, saved_data="full", framework="torch") as dump:
        assert same_bits(program(), plain)
    assert dump.report is not None
    runs = executions(tmp_path)
    assert [run.op.op_type for run in runs] == ["relu", "MatMul", "Relu", "Softmax", "exp"] * 2
    orders = [run.op.order for run in runs]
    assert orders == sorted(set(orders))
    assert same_bits(runs[1].inputs[0].numpy(), np.maximum(ROWS, 0))
    assert same_bits(runs[4].outputs[0].numpy(), plain[0])
