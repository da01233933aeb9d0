"""Where each operator belongs: names, lines of the program, selection, steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opdump
from opdump.errors import NotInDumpError
from opdump.records import OpRecord
from tests.torch.programs import ConvNet, train_convnet


def ops_by_type(path: Path, step: int | None = None) -> dict[str, list[OpRecord]]:
    found: dict[str, list[OpRecord]] = {}
    for op in opdump.open(path).ops(step=step):
        found.setdefault(op.op_type, []).append(op.op)
    return found


def line_of(function: object, text: str) -> int:
    """The number of the line of `function` in this file that contains `text`."""
    import inspect

    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(number for number, line in enumerate(lines) if text in line)


def train_once(model: nn.Module, inputs: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(inputs).square().sum()
    loss.backward()
    optimizer.step()


def test_names_are_scopes_also_in_backward_and_in_the_optimizer(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="1"):
        train_convnet()
    ops = ops_by_type(tmp_path)
    scopes = {op_type: {op.op_name.rpartition("/")[0] for op in found} for op_type, found in ops.items()}
    assert scopes["convolution"] == {"Default/network-ConvNet/conv1-Conv2d", "Default/network-ConvNet/conv2-Conv2d"}
    assert scopes["convolution_backward"] == {f"Gradients/{scope}" for scope in scopes["convolution"]}
    assert scopes["addmm"] == {"Default/network-ConvNet/fc-Linear"}
    assert scopes["lerp_"] == {"Default/optimizer-AdamW"}
    assert {op.phase for op in ops["convolution_backward"]} == {"backward"}
    assert {op.phase for op in ops["lerp_"]} == {"optimizer"}
    assert scopes["nll_loss_forward"] == {"Default"}


def test_operator_ids_are_unique_in_a_graph_and_names_are_the_same_in_every_step(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="1-2", saved_data="statistic"):
        train_convnet()
    catalog = opdump.open(tmp_path)
    first, second = ([op.op_name for op in catalog.ops(step=step)] for step in (1, 2))
    assert first == second
    ids = [name.rpartition("/")[2] for name in first]
    assert len(ids) == len(set(ids))


def test_short_names_leave_out_the_classes(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, class_names_in_scope=False):
        train_once(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))
    (product,) = ops_by_type(tmp_path)["addmm"]
    assert product.op_name.startswith("Default/network/0/addmm-op")


def test_a_backward_operator_carries_the_line_and_the_name_of_its_forward_operator(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        train_once(ConvNet(), torch.ones(1, 1, 8, 8))
    ops = ops_by_type(tmp_path)
    line = line_of(ConvNet.forward, "self.pool(self.relu(self.conv2(x)))")
    forward = next(op for op in ops["convolution"] if "conv2" in op.op_name)
    backward = next(op for op in ops["convolution_backward"] if "conv2" in op.op_name)
    assert backward.forward_op == forward.op_name
    assert forward.stack[0].line == backward.stack[0].line == line
    assert forward.stack[0].file.endswith("programs.py")
    assert "self.conv2(x)" in forward.stack[0].code
    assert forward.stack[1].line == line_of(train_once, "model(inputs)")


def test_an_optimizer_operator_carries_the_line_of_its_step(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        train_once(nn.Linear(2, 2), torch.ones(1, 2))
    update = next(op for op in opdump.open(tmp_path).ops() if op.phase == "optimizer" and op.op_type != "Parameter")
    assert update.stack[0].line == line_of(train_once, "optimizer.step()")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputation_is_labelled_as_the_forward_that_it_is(reentrant: bool, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(lambda value: torch.tanh(self.inner(value)), x, use_reentrant=reentrant)
            return result

    with opdump.capture(path=tmp_path):
        train_once(Net(), torch.ones(1, 2, requires_grad=True))
    ops = ops_by_type(tmp_path)
    assert [op.phase for op in ops["tanh"]] == ["forward", "recomputation"]
    assert [op.phase for op in ops["addmm"]] == ["forward", "recomputation"]
    assert all("Default/network-Net/inner-Linear/" in op.op_name for op in ops["addmm"])
    assert not any(op.op_name.startswith("Gradients") for op in ops["addmm"])
    (gradient,) = ops["tanh_backward"]
    assert gradient.forward_op in {op.op_name for op in ops["tanh"]}
    assert gradient.stack[0].line == ops["tanh"][0].stack[0].line


def test_iterations_that_are_not_named_leave_nothing(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="0|2", saved_data="statistic") as dump:
        train_convnet(4)
    assert sorted(path.name for path in (tmp_path / "rank_0" / "Net" / "0").iterdir()) == ["0", "2"]
    assert dump.report is not None
    assert dump.report.steps == (0, 2)


def test_kernels_select_by_type_name_and_expression_in_backward_too(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="1", kernels=["Conv2D", "name-regex(Default/optimizer.+)"]) as dump:
        train_convnet()
    assert {op.op_type for op in opdump.open(tmp_path).ops() if op.phase == "optimizer"} >= {"lerp_", "addcdiv_"}
    assert {op.op_type for op in opdump.open(tmp_path).ops() if op.phase != "optimizer"} == {
        "convolution",
        "convolution_backward",
    }
    assert dump.report is not None
    assert dump.report.skipped["not selected"] > 10
    assert dump.report.warnings == ()


def test_a_kernel_that_matches_nothing_is_reported_at_the_end(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="1", kernels=["Conv2D", "NoSuchOperator"]) as dump:
        train_convnet()
    assert dump.report is not None
    assert any("NoSuchOperator" in text for text in dump.report.warnings)


@pytest.mark.parametrize(
    "settings", [{"kernels": ["NoSuchOperator"]}, {"dump_mode": 2}, {"op_debug_mode": 3}, {"saved_data": "statistic"}]
)
def test_the_history_of_a_graph_lists_every_dumped_step_whatever_is_filed_of_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with opdump.capture(path=tmp_path, iteration="0|2", **settings):
        train_convnet(4)
    (history,) = tmp_path.glob("rank_0/execution_order/ms_global_execution_order_graph_*.csv")
    assert history.read_text() == "0\n2\n"


def test_set_dump_selects_a_module_with_its_backward(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    opdump.set_dump(model[1])
    try:
        with opdump.capture(path=tmp_path, selection="marked"):
            train_once(model, torch.ones(1, 2))
    finally:
        opdump.set_dump(model[1], enabled=False)
    names = [op.op_name for op in opdump.open(tmp_path).ops()]
    assert names
    assert all("/1-Linear/" in name for name in names)
    assert any(name.startswith("Gradients/") for name in names)


def test_set_dump_selects_a_class_and_a_function(tmp_path: Path) -> None:
    def score(value: Tensor) -> Tensor:
        return value.exp()

    for target, wanted in ((nn.ReLU, {"relu", "threshold_backward"}), (score, {"exp", "mul"})):
        opdump.set_dump(target)
        try:
            path = tmp_path / wanted.copy().pop()
            model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
            with opdump.capture(path=path, selection="marked"):
                score(model(torch.ones(1, 2))).sum().backward()
        finally:
            opdump.set_dump(target, enabled=False)
        assert {op.op_type for op in opdump.open(path).ops()} == wanted


def test_set_dump_refuses_what_it_cannot_mark() -> None:
    with pytest.raises(ValueError, match="is not a PyTorch module"):
        opdump.set_dump("conv1")
    with pytest.raises(ValueError, match="expected True or False"):
        opdump.set_dump(nn.Linear(1, 1), enabled=1)  # type: ignore[arg-type]


def test_input_output_chooses_sides(tmp_path: Path) -> None:
    for inputs, outputs, expected in ((True, False, {"input"}), (False, True, {"output"})):
        path = tmp_path / str(inputs)
        with opdump.capture(path=path, iteration="1", inputs=inputs, outputs=outputs):
            train_convnet()
        assert {record.io for record in opdump.open(path)} == expected


def test_support_device_has_no_effect_on_a_cpu(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, devices=frozenset({5})) as dump:
        torch.ones(2) + 1
    assert dump.report is not None
    assert dump.report.captured == 2


def test_gradient_accumulation_repeats_names_with_an_occurrence(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with opdump.capture(path=tmp_path, saved_data="statistic"):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    products = ops_by_type(tmp_path, step=0)["addmm"]
    assert len({op.op_name for op in products}) == 1
    assert [op.occurrence for op in products] == [0, 1, 2]
    assert sorted(op.timestamp for op in products) == [op.timestamp for op in products]


def test_what_runs_after_the_last_step_belongs_to_it(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with opdump.capture(path=tmp_path):
        train_once(model, torch.ones(1, 2))
        model.weight.detach().exp()
    catalog = opdump.open(tmp_path)
    assert catalog.steps == (0,)
    assert [op.op_type for op in catalog.ops(step=0)][-1] == "exp"


def test_two_optimizers_in_a_row_share_a_step_with_what_runs_between_them(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model)
    with opdump.capture(path=tmp_path, saved_data="full"):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            first.step()
            torch.nn.utils.clip_grad_norm_(model[1].parameters(), 0.1)
            second.step()
    catalog = opdump.open(tmp_path)
    assert catalog.steps == (0, 1)
    assert any("norm" in op.op_type for op in catalog.ops(step=0))
    assert (tmp_path / "rank_0" / "Net" / "0" / "2").exists() is False


def test_stop_after_dump_ends_the_program_once_the_last_step_is_on_disk(tmp_path: Path) -> None:
    steps = []
    with opdump.capture(path=tmp_path, iteration="1", stop_after_dump=True, saved_data="statistic") as dump:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(10):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            steps.append(step)
    assert steps == [0, 1]
    assert dump.report is not None
    assert dump.report.steps == (1,)


def test_a_file_name_over_255_bytes_goes_through_mapping_csv(tmp_path: Path) -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a" * 250, Inner())
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = next(iter(self._modules.values()))(x)  # type: ignore[misc]
            return result

    with opdump.capture(path=tmp_path, layout="mindspore-2.10"):
        Outer()(torch.zeros(2))
    (mapping,) = tmp_path.rglob("mapping.csv")
    assert "a" * 250 in mapping.read_text()
    execution = next(e for e in opdump.open(tmp_path).executions() if e.op.op_type == "exp")
    assert execution.outputs[0].payload is not None
    assert execution.outputs[0].payload.to_host().tolist() == [1, 1]


def test_the_graph_files_name_every_dumped_operator_with_its_line(tmp_path: Path) -> None:
    from opdump.layouts.graph_files.mindspore import decode_ir, decode_pb

    with opdump.capture(path=tmp_path, saved_data="statistic"):
        train_once(ConvNet(), torch.ones(1, 1, 8, 8))
    ops = [op for op in opdump.open(tmp_path).ops() if op.op_type != "Parameter"]
    folder = tmp_path / "rank_0" / "graphs"
    for graph in (
        decode_ir((folder / "ms_output_trace_code_graph_0.ir").read_bytes()),
        decode_pb((folder / "ms_output_trace_code_graph_0.pb").read_bytes()),
    ):
        nodes = {node.op_name: node for node in graph.nodes}
        for op in ops:
            assert op.op_name in nodes
            told = [(frame.file, frame.line) for frame in nodes[op.op_name].stack if frame.file]
            assert told[0] == (op.stack[0].file, op.stack[0].line)
            assert set(told) <= {(frame.file, frame.line) for frame in op.stack}
    order = (tmp_path / "rank_0" / "execution_order" / "ms_execution_order_graph_0.csv").read_text().split("\n")
    assert order[0] == "NodeExecutionOrder-FullNameWithScope"
    assert order[1:-1] == list(dict.fromkeys(op.op_name for op in ops))
    history = tmp_path / "rank_0" / "execution_order" / "ms_global_execution_order_graph_0.csv"
    assert history.read_text() == "0\n"


def test_torchrun_with_two_processes_gives_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, torch, torch.distributed as dist
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
                optimizer.step()
            dist.destroy_process_group()
            """
        )
    )
    config = {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(tmp_path / "dump").replace(".", "_"),
            "net_name": "Net",
            "iteration": "all",
            "saved_data": "full",
            "input_output": 0,
            "kernels": [],
            "support_device": [0, 1],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }
    (tmp_path / "data_dump.json").write_text(json.dumps(config))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "opdump", "run", "-c", str(tmp_path / "data_dump.json"), str(script)),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    catalog = opdump.open(config["common_dump_settings"]["path"])  # type: ignore[index]
    assert catalog.ranks == (0, 1)
    assert catalog.steps == (0, 1)
    for rank in (0, 1):
        product = next(e for e in catalog.executions(step=0, rank=rank) if e.op.op_type == "addmm")
        assert product.op.rank_id == rank
        assert product.inputs[1].payload is not None
        assert product.inputs[1].payload.to_host().tolist() == [[rank, rank]]


def test_a_higher_order_operator_is_one_operator(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)

    def choose(value: Tensor) -> Tensor:
        result: Tensor = torch.cond(value.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (value,))
        return result

    plain = torch.autograd.grad(choose(x).sum(), x)[0]
    with opdump.capture(path=tmp_path):
        captured = torch.autograd.grad(choose(x).sum(), x)[0]
    assert torch.equal(plain, captured)


def test_fake_tensors_pass_through(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with opdump.capture(path=tmp_path) as dump, FakeTensorMode():
        assert (torch.ones(3) @ torch.ones(3, 2)).shape == (2,)
    assert dump.report is not None
    assert dump.report.captured == 0


def test_an_operator_without_a_kernel_is_listed_once_and_counted_from_then_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.ones(2, 3)
    with opdump.capture(path=tmp_path, saved_data="statistic", iteration="all") as dump:
        for _ in range(5):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    catalog = opdump.open(tmp_path)
    listed = [[op for op in catalog.ops(step=step, include_skipped=True) if op.skip] for step in catalog.steps]
    counted = [catalog.counted(step) for step in catalog.steps]
    names = [(op.graph_id, op.op_name, op.occurrence) for ops in listed for op in ops]
    assert len(names) == len(set(names))
    assert listed[0]
    assert sum(counted[0].values()) == 0
    assert counted[-1]["view"] > 0
    assert counted[2] == counted[3]
    assert listed[2] == listed[3] == []
    assert dump.report is not None
    total = sum(map(len, listed)) + sum(sum(step.values()) for step in counted)
    assert sum(dump.report.skipped.values()) == total
    (view, *_) = [op for op in listed[0] if op.skip == "view"]
    assert catalog.op(view.op_name).op == view.op
    with pytest.raises(
        NotInDumpError, match=r"runs no kernel .* the first step that ran it lists it, step 3 only counts"
    ):
        catalog.op(view.op_name, step=3)
    # Operators that the graph contains as views are those that were listed.
    graph = catalog.graph(0)
    assert catalog.graphs == (0,)
    assert graph is not None
    views = {node.op_name for node in graph.nodes if not node.runs_kernel}
    assert {op.op_name for ops in listed for op in ops if op.skip in ("view", "metadata", "allocation")} == views


class CallsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.doubler = Doubler()

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.called(x)  # the first call
        second: Tensor = self.called(first)  # the second call
        return first + second

    def called(self, x: Tensor) -> Tensor:
        result: Tensor = self.doubler(x)
        return result


class Doubler(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_each_call_of_a_module_has_the_lines_of_its_own_callers(tmp_path: Path) -> None:
    model = CallsTwice()
    with opdump.capture(path=tmp_path, saved_data="statistic"):
        model(torch.ones(2, requires_grad=True))
    muls = ops_by_type(tmp_path)["mul"]
    lines = [[frame.line for frame in op.stack[:3]] for op in muls]
    inner = line_of(Doubler.forward, "x * 2"), line_of(CallsTwice.called, "self.doubler(x)")
    assert lines == [
        [*inner, line_of(CallsTwice.forward, "# the first call")],
        [*inner, line_of(CallsTwice.forward, "# the second call")],
    ]
    assert len(muls[0].stack) == len(muls[1].stack) > 3


def test_an_optimizer_that_fails_leaves_no_lines_behind(tmp_path: Path) -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("cannot")

    model = CallsTwice()
    weight = torch.ones(2, requires_grad=True)

    def after(x: Tensor) -> Tensor:
        return x.exp()

    with opdump.capture(path=tmp_path, saved_data="statistic"):
        model(weight).sum().backward()
        with pytest.raises(RuntimeError, match="cannot"):
            Fails([weight]).step()
        outside = after(weight.detach())
        model(outside)
    (exp,) = ops_by_type(tmp_path)["exp"]
    here = test_an_optimizer_that_fails_leaves_no_lines_behind
    assert [frame.line for frame in exp.stack[:2]] == [line_of(here, "x.exp()"), line_of(here, "outside = after")]
    last = ops_by_type(tmp_path)["mul"][-1]
    assert [frame.line for frame in last.stack[:4]] == [
        line_of(Doubler.forward, "x * 2"),
        line_of(CallsTwice.called, "self.doubler(x)"),
        line_of(CallsTwice.forward, "# the second call"),
        line_of(here, "model(outside)"),
    ]
