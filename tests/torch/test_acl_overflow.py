"""Overflow mode writes only operators that overflow, complete and with their overflow status."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import opdump
from opdump.catalog.catalog import Execution
from opdump.dump_file.opdebug import decode_opdebug
from opdump.plan import DumpPlan
from opdump.recorder import Elements


def statuses(path: Path) -> list[int]:
    found = []
    for file in sorted(path.rglob("Opdebug.Node_OpDebug.*"), key=lambda file: int(file.name.rpartition(".")[2])):
        (payload,) = opdump.read_dump_file(file).outputs
        reports = {report.accelerator: report for report in decode_opdebug(payload.to_host().tobytes()).reports}
        found.append(reports["AI Core"].statuses[0])
    return found


def overflowing(path: Path) -> list[Execution]:
    """The operators, without the files of their overflow status."""
    return [found for found in opdump.open(path).executions() if found.op.op_type != "Opdebug"]


def test_an_operator_that_overflows_is_filed_with_its_status(tmp_path: Path) -> None:
    half = torch.full((3,), 6e4).half()
    with opdump.capture(overflow=True, path=tmp_path) as dump:
        half + 1
        half * 4
        torch.full((2,), 1e38) * torch.full((2,), 1e38)
    first, second = overflowing(tmp_path)
    assert (first.op.op_type, second.op.op_type) == ("mul", "mul")
    payload = first.inputs[0].payload
    assert payload is not None
    assert payload.to_host().tolist() == half.tolist()
    assert statuses(tmp_path) == [0x20, 0x20]
    assert dump.report is not None
    assert dump.report.captured == 2
    assert dump.report.skipped["no overflow"] >= 2


@pytest.mark.parametrize(
    ("kind", "status"), [("cast", 0x100), ("negated", 0x8), ("integers", 0x10), ("product", 0x400), ("unsigned", 0x80)]
)
def test_the_status_bits_of_each_kind(kind: str, status: int, tmp_path: Path) -> None:
    big = torch.full((2, 2), 1e38)
    with opdump.capture(overflow=True, path=tmp_path):
        if kind == "cast":
            big.half()
        elif kind == "negated":
            -torch.tensor([-128], dtype=torch.int8)
        elif kind == "integers":
            torch.tensor([2**31 - 1], dtype=torch.int32) + 1
        elif kind == "product":
            big @ big
        else:
            torch.tensor([-1.0]).to(torch.uint8)
    assert statuses(tmp_path) == [status]


def test_an_operator_in_place_is_judged_and_filed_by_what_it_read(tmp_path: Path) -> None:
    x = torch.full((2,), 1e38)
    with opdump.capture(overflow=True, path=tmp_path):
        x.mul_(x)
        x.mul_(2)  # its input is already infinite
    (failed,) = overflowing(tmp_path)
    before, after = failed.inputs[0].payload, failed.outputs[0].payload
    assert before is not None
    assert after is not None
    assert before.to_host().tolist() == torch.full((2,), 1e38).tolist()
    assert after.to_host().tolist() == [float("inf")] * 2


def test_without_an_overflow_there_is_no_directory(tmp_path: Path) -> None:
    with opdump.capture(overflow=True, path=tmp_path / "dump"):
        layer = torch.nn.Linear(3, 3)
        layer(torch.ones(2, 3)).relu().sum().backward()
        torch.ones(2, 3).masked_fill(torch.tensor([True, False, False]), float("-inf")).softmax(-1)
    assert list((tmp_path / "dump").iterdir()) == []


def test_a_gradient_that_overflows(tmp_path: Path) -> None:
    x = torch.full((2,), 1e30, requires_grad=True)
    with opdump.capture(overflow=True, path=tmp_path):
        (x * 1e20).backward(torch.full((2,), 1e30))
    phases = [execution.op.phase for execution in overflowing(tmp_path)]
    assert phases == ["forward", "backward"]


def test_only_as_many_as_the_plan_wants(tmp_path: Path) -> None:
    plan = DumpPlan(
        path=tmp_path, captures="overflow", overflow_number=1, layout="acl", file_format="bin", dialect="acl"
    )
    with opdump.capture(plan):
        for _ in range(3):
            torch.full((2,), 1e38) * 1e38
    assert len(statuses(tmp_path)) == 1


def test_the_synchronous_layout(tmp_path: Path) -> None:
    with opdump.capture(overflow=True, path=tmp_path, layout="mindspore-2.3"):
        torch.ones(2) + 1
        torch.full((2,), 1e38) * torch.full((2,), 1e38)
    names = sorted(file.name.rpartition(".0.")[2] or file.name for file in tmp_path.rglob("mul.*.npy"))
    assert len(names) == 3
    assert not [file for file in tmp_path.rglob("*.npy") if not file.name.startswith("mul.")]
    (found,) = opdump.open(tmp_path).executions()
    assert found.op.op_type == "mul"


def test_op_debug_mode_3_of_a_data_dump_json(tmp_path: Path) -> None:
    common = {"dump_mode": 0, "path": str(tmp_path / "dump"), "net_name": "Net", "iteration": "all"}
    config = {
        "common_dump_settings": {**common, "input_output": 0, "kernels": [], "support_device": [0], "op_debug_mode": 3},
        "e2e_dump_settings": {"enable": True},
    }
    (tmp_path / "data_dump.json").write_text(json.dumps(config))
    with opdump.capture(tmp_path / "data_dump.json"):
        torch.ones(2) + 1
        torch.full((2,), 1e38) * torch.full((2,), 1e38)
    (found,) = overflowing(tmp_path / "dump")
    assert found.op.op_type == "mul"
    assert len(list((tmp_path / "dump").rglob("mul.*.npy"))) == 3


def test_dump_debug_of_an_acl_json(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "acl.json").write_text(
        json.dumps({"dump": {"dump_path": str(tmp_path / "output"), "dump_debug": "on"}})
    )
    with opdump.capture(tmp_path / "acl.json"):
        torch.full((2,), 1e38) * 1e38
    assert statuses(tmp_path / "output") == [0x20]


def test_an_input_that_shares_memory_with_what_is_written_is_filed_as_it_was(tmp_path: Path) -> None:
    x = torch.full((2,), 1e38)
    with opdump.capture(overflow=True, path=tmp_path):
        x.mul_(x.view(2, 1).view(2))
    (failed,) = overflowing(tmp_path)
    assert set(failed.inputs) == {0, 1}
    for before in failed.inputs.values():
        assert before.payload is not None
        assert before.payload.to_host().tolist() == torch.full((2,), 1e38).tolist()


def test_inputs_in_slot_order_where_some_are_read_before_and_some_after(tmp_path: Path) -> None:
    first, second = torch.full((2,), 1e38), torch.full((2,), 2.0)
    with opdump.capture(overflow=True, path=tmp_path):
        second.addcmul_(first, first)
    (failed,) = overflowing(tmp_path)
    assert [record.argument for record in failed.inputs.values()] == ["self", "tensor1", "tensor2"]
    payloads = [record.payload for record in failed.inputs.values()]
    assert [payload.to_host()[0] for payload in payloads if payload is not None] == pytest.approx([2.0, 1e38, 1e38])


def test_a_list_of_tensors_in_place(tmp_path: Path) -> None:
    fine, large = torch.ones(2), torch.full((2,), 1e38)
    with opdump.capture(overflow=True, path=tmp_path):
        torch._foreach_mul_([fine, large], 10.0)
    (failed,) = overflowing(tmp_path)
    payloads = [record.payload for record in failed.inputs.values()]
    assert [payload.to_host()[0] for payload in payloads if payload is not None] == pytest.approx([1.0, 1e38])
    assert sorted(failed.outputs) == [0, 1]


def test_an_operator_of_another_library_may_write_into_any_tensor(tmp_path: Path) -> None:
    with torch.library._scoped_library("opdump_overflow_test", "DEF") as library:
        library.define("scale(Tensor x) -> Tensor")

        def scale(x: torch.Tensor) -> torch.Tensor:
            given = x.clone()
            x.numpy()[:] = np.nan  # neither declared in the schema nor counted by the version counter
            return given * 10

        library.impl("scale", scale, "CPU")
        x = torch.full((2,), 1e38)
        with opdump.capture(overflow=True, path=tmp_path):
            torch.ops.opdump_overflow_test.scale(x)
    failed = next(each for each in overflowing(tmp_path) if "scale" in each.op.op_type)
    before = failed.inputs[0].payload
    assert before is not None
    assert before.to_host().tolist() == pytest.approx([1e38, 1e38])


def test_operators_that_give_finite_numbers_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    own = Elements.own

    def counted(elements: Elements) -> None:
        before = elements.lent()
        own(elements)
        if elements.lent() is not before:
            copied.append(before.size)

    monkeypatch.setattr(Elements, "own", counted)
    x = torch.ones(7)
    with opdump.capture(overflow=True, path=tmp_path):
        (x + x).sum().sigmoid()
        assert copied == []
        x.add_(1)
        assert copied == [7]  # a copy of what it writes into, before it runs
        x * torch.full((7,), 1e38)  # finite
        assert copied == [7]
        x * torch.full((7,), 3e38)
        assert copied == [7, 7, 7, 7]
    assert len(overflowing(tmp_path)) == 1
