"""Exception mode: the inputs of an operator that raises are on disk before the program receives the error."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import opdump
from opdump.catalog.catalog import Execution
from opdump.commands.ending import without_opdump_frames
from opdump.plan import DumpPlan
from opdump.recorder import TensorSnapshot


class Doubling(torch.autograd.Function):
    """Raises in forward for a negative sum, and in backward for a large gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        if gradient.max() > 100:
            raise ValueError("too large")
        return gradient * 2


def call(function: type[torch.autograd.Function], *args: Tensor) -> Any:
    return function.apply(*args)


def failures(path: Path) -> list[Execution]:
    return list(opdump.open(path).executions())


def raised(program: Callable[[], object], path: Path) -> tuple[Exception, list[Execution]]:
    """The error that the program raised under capture, and what was on disk when the program received it."""
    with opdump.capture(on_exception=True, path=path):
        try:
            program()
        except Exception as error:  # noqa: BLE001  whatever it is
            # Read now, not at the end of the capture.
            return error, failures(path)
    raise AssertionError("the program raised nothing")


def outside_of_range() -> object:
    return functional.embedding(torch.tensor([1, 7]), torch.ones(3, 2))


def index_beyond() -> object:
    return torch.arange(3.0)[10]


def shapes_of_a_sum() -> object:
    return torch.ones(2, 3) + torch.ones(2, 4)


def shapes_of_a_product() -> object:
    return nn.Linear(3, 2)(torch.ones(5, 4))


def vector_product() -> object:
    return torch.ones(2) @ torch.ones(3)


def view_of_another_size() -> object:
    return torch.arange(6.0).view(7)


def own_forward() -> object:
    return call(Doubling, torch.tensor([-1.0, -2.0], requires_grad=True))


def own_backward() -> object:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (call(Doubling, x) * 1000).sum().backward()
    return x.grad


def operator_in_a_backward() -> object:
    class Breaking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return torch.cat([gradients[0], torch.ones(1, 1)])

    call(Breaking, torch.ones(3, requires_grad=True)).sum().backward()
    return None


CASES: dict[str, tuple[Callable[[], object], str, list[tuple[int, ...]]]] = {
    "an index out of range": (outside_of_range, "embedding", [(3, 2), (2,)]),
    "an index beyond the end": (index_beyond, "getitem", [(3,)]),
    "shapes that do not match": (shapes_of_a_sum, "add", [(2, 3), (2, 4)]),
    "a layer of another width": (shapes_of_a_product, "addmm", [(2,), (5, 4), (3, 2)]),
    "vectors of two lengths": (vector_product, "dot", [(2,), (3,)]),
    "a view of another size": (view_of_another_size, "view", [(6,)]),
    "a custom forward": (own_forward, "Doubling", [(2,)]),
    "a custom backward": (own_backward, "DoublingBackward", [(2,)]),
    "an operator inside backward": (operator_in_a_backward, "cat", [(3,), (1, 1)]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_inputs_of_a_failing_operator_are_on_disk_before_the_program_knows(case: str, tmp_path: Path) -> None:
    program, op_type, shapes = CASES[case]
    error, found = raised(program, tmp_path)
    (failed,) = found
    assert failed.op.op_type == op_type
    assert [record.shape for record in failed.inputs.values()] == shapes
    assert not failed.outputs
    with pytest.raises(type(error)) as plain:
        program()
    assert str(plain.value) == str(error)


@pytest.mark.parametrize("case", CASES)
def test_the_traceback_is_that_of_a_run_without_capture_but_for_our_frames(case: str, tmp_path: Path) -> None:
    program, *_ = CASES[case]
    error, _ = raised(program, tmp_path)
    with pytest.raises(type(error)) as plain:
        program()

    def users_lines(found: BaseException) -> list[tuple[str, int | None]]:
        frames = traceback.extract_tb(without_opdump_frames(found).__traceback__)[1:]
        return [(frame.name, frame.lineno) for frame in frames if frame.filename == __file__]

    assert users_lines(error) == users_lines(plain.value)


def test_the_file_holds_the_elements_and_what_was_said(tmp_path: Path) -> None:
    error, (failed,) = raised(outside_of_range, tmp_path)
    (file,) = (tmp_path / "extra-info" / "data-dump" / "0").glob("exception_info.*")
    assert file.stat().st_mode & 0o777 == 0o400
    assert str(error) in opdump.read_dump_file(file).dfx_message
    arrays = [record.payload.to_host() for record in failed.inputs.values() if record.payload is not None]
    assert np.array_equal(arrays[0], np.ones((3, 2), np.float32))
    assert np.array_equal(arrays[1], np.array([1, 7]))


def test_the_program_gets_the_very_same_error(tmp_path: Path) -> None:
    mine = ValueError("mine")

    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            raise mine

    error, (failed,) = raised(lambda: call(Raising, torch.ones(2)), tmp_path)
    assert error is mine
    assert failed.op.op_type == "Raising"


def test_a_program_that_goes_on_leaves_every_failure(tmp_path: Path) -> None:
    with opdump.capture(on_exception=True, path=tmp_path) as dump:
        for width in range(3, 8):
            with pytest.raises(RuntimeError):
                torch.ones(2) + torch.ones(width)
        assert len(failures(tmp_path)) == 5
    assert [execution.inputs[1].shape for execution in failures(tmp_path)] == [(3,), (4,), (5,), (6,), (7,)]
    assert dump.report is not None
    assert dump.report.captured == 5


def test_what_an_operator_writes_into_is_read_before_it_runs(tmp_path: Path) -> None:
    library = torch.library.Library("opdump_failing", "DEF")
    library.define("spoil(Tensor(a!) x, Tensor y) -> ()")

    def spoil(x: Tensor, y: Tensor) -> None:
        x.fill_(-1)
        raise RuntimeError("half way")

    library.impl("spoil", spoil, "CPU")
    x = torch.arange(3.0)
    error, (failed,) = raised(lambda: torch.ops.opdump_failing.spoil(x, torch.ones(1)), tmp_path)
    assert "half way" in str(error)
    assert torch.equal(x, torch.full((3,), -1.0))
    arrays = [record.payload.to_host().tolist() for record in failed.inputs.values() if record.payload is not None]
    assert arrays == [[0.0, 1.0, 2.0], [1.0]]


def test_a_compiled_region_is_one_operator_with_its_inputs(tmp_path: Path) -> None:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def look_up(table: Tensor, places: Tensor) -> Tensor:
        return functional.embedding(places, table) * 2

    table = torch.ones(3, 2)
    look_up(table, torch.tensor([0, 1]))
    error, (failed,) = raised(lambda: look_up(table, torch.tensor([0, 9])), tmp_path)
    assert isinstance(error, IndexError)
    assert failed.op.op_type.startswith("compiled_look_up")
    assert sorted(record.shape for record in failed.inputs.values()) == [(2,), (3, 2)]


def test_a_function_compiles_once_and_as_without_capture(tmp_path: Path) -> None:
    torch._dynamo.reset()
    graphs: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    @torch.compile(backend=counting, fullgraph=True)
    def run(x: Tensor) -> Tensor:
        result: Tensor = torch.sigmoid(x) * 3 + x[1:].sum()
        return result

    plain = run(torch.ones(3))
    torch._dynamo.reset()
    with opdump.capture(on_exception=True, path=tmp_path):
        captured = run(torch.ones(3))
        again = run(torch.ones(3))
    assert torch.equal(plain, captured)
    assert torch.equal(plain, again)
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]


def test_a_thread_that_was_started_under_capture(tmp_path: Path) -> None:
    caught: list[Exception] = []

    def work() -> None:
        try:
            index_beyond()
        except IndexError as error:
            caught.append(error)
        try:
            shapes_of_a_sum()
        except RuntimeError as error:
            caught.append(error)

    with opdump.capture(on_exception=True, path=tmp_path):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(caught) == 2
    assert [execution.op.op_type for execution in failures(tmp_path)] == ["getitem", "add"]


def test_a_run_without_failure_leaves_nothing_and_reads_no_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opdump.adapters.torch.reader import TensorReader

    read: list[object] = []
    take = TensorReader.take

    def counting(reader: TensorReader, tensor: Tensor) -> TensorSnapshot:
        read.append(tensor)
        return take(reader, tensor)

    monkeypatch.setattr(TensorReader, "take", counting)
    with opdump.capture(on_exception=True, path=tmp_path):
        nn.functional.relu(torch.ones(3) * 2).sum()
    assert read == []
    assert list(tmp_path.iterdir()) == []


def test_the_norm_scene_names_the_operator(tmp_path: Path) -> None:
    plan = DumpPlan(
        path=tmp_path,
        captures="exception",
        exception_detail="norm",
        layout="acl",
        file_format="bin",
        dialect="acl",
        outputs=False,
    )
    with opdump.capture(plan), pytest.raises(RuntimeError):
        shapes_of_a_sum()
    (file,) = (tmp_path / "extra-info" / "data-dump" / "0").glob("add.*")
    assert len(file.name.split(".")) == 4


def test_the_synchronous_layout(tmp_path: Path) -> None:
    with opdump.capture(on_exception=True, path=tmp_path, layout="mindspore-2.3") as dump:
        with pytest.raises(RuntimeError):
            shapes_of_a_sum()
        files = [file.name for file in tmp_path.rglob("*.npy")]
        assert len(files) == 2
        assert all(name.startswith("add.") and ".input." in name for name in files)
    assert dump.report is not None
    assert dump.report.captured == 1
    (failed,) = failures(tmp_path)
    assert [record.shape for record in failed.inputs.values()] == [(2, 3), (2, 4)]


def test_op_debug_mode_4_of_a_data_dump_json(tmp_path: Path) -> None:
    config = {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(tmp_path / "dump"),
            "net_name": "Net",
            "iteration": "all",
            "input_output": 0,
            "kernels": [],
            "op_debug_mode": 4,
            "support_device": [0],
        },
        "e2e_dump_settings": {"enable": True},
    }
    (tmp_path / "data_dump.json").write_text(json.dumps(config))
    with opdump.capture(tmp_path / "data_dump.json"):
        torch.ones(3) * 2
        with pytest.raises(RuntimeError):
            shapes_of_a_sum()
        assert len(list((tmp_path / "dump").rglob("*.npy"))) == 2
    (failed,) = failures(tmp_path / "dump")
    assert failed.op.op_type == "add"


def test_without_a_path_the_variable_for_work_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path / "work"))
    with opdump.capture(on_exception=True), pytest.raises(RuntimeError):
        shapes_of_a_sum()
    assert list((tmp_path / "work" / "extra-info" / "data-dump" / "0").glob("exception_info.*"))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    apply = torch.autograd.Function.__dict__["apply"]
    backward = torch.autograd.function.BackwardCFunction.__dict__["apply"]
    with opdump.capture(on_exception=True, path=tmp_path):
        assert torch._C._len_torch_function_stack() == 1
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert torch.autograd.function.BackwardCFunction.__dict__["apply"] is backward
