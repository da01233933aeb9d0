"""Records contain where each tensor lay and how often it had been written, also by something other than an operator."""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import opdump
from opdump.adapters.torch.memory import Storages
from opdump.adapters.torch.schemas import schema_of
from opdump.catalog.catalog import Execution
from opdump.commands import main
from opdump.records import Memory, TensorRecord
from tests.layouts.filing import index_file


def recorded(path: Path, program: Callable[[], object], **settings: Any) -> list[TensorRecord]:
    """The tensors of all operators of the program."""
    with opdump.capture(path=path, **{"saved_data": "statistic", **settings}):
        program()
    catalog = opdump.open(path)
    assert not catalog.problems
    return list(catalog.tensors(include_skipped=True))


def memories(records: list[TensorRecord], op_type: str) -> list[Memory | None]:
    return [record.memory for record in records if record.op.op_type == op_type]


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_views_share_a_storage_and_have_a_place_in_it(saved_data: str, tmp_path: Path) -> None:
    def program() -> None:
        whole = torch.ones(4, 6)
        whole[1:, ::2].exp()
        whole.t().sin()
        whole[0].expand(3, 6).cos()

    records = recorded(tmp_path, program, saved_data=saved_data)
    assert memories(records, "exp") == [Memory(0, 6, (6, 2)), Memory(1, 0, (3, 1))]
    assert memories(records, "sin") == [Memory(0, 0, (1, 6)), Memory(2, 0, (1, 6))]
    assert memories(records, "cos") == [Memory(0, 0, (0, 1)), Memory(3, 0, (6, 1))]


def test_an_input_is_as_it_was_before_and_an_output_as_it_is_after(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.zeros(3)
        x.add_(1)
        y = x.detach()
        y.mul_(2)
        x.exp()
        torch.sin(x, out=y)
        x.cos()

    records = recorded(tmp_path, program)
    versions = {
        name: [memory.version for memory in memories(records, name) if memory is not None]
        for name in ("add_", "mul_", "exp", "sin", "cos")
    }
    assert versions == {"add_": [0, 1], "mul_": [1, 2], "exp": [2, 0], "sin": [2, 2, 3], "cos": [3, 0]}


def test_a_tensor_with_its_own_version_counter_may_have_a_lower_version(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.zeros(3)
        x.add_(1)
        x.add_(1)
        x.exp()
        x.data.sin()

    def later() -> None:
        x = torch.zeros(3)
        for _ in range(2):
            x.add_(1)
        with opdump.capture(path=tmp_path / "later", saved_data="statistic"):
            x.exp()
            x.data.sin()

    assert [memory and memory.version for memory in memories(recorded(tmp_path, program), "sin")] == [0, 0]
    later()
    records = list(opdump.open(tmp_path / "later").tensors())
    assert [memory and memory.version for memory in memories(records, "exp")] == [0, 0]
    assert [memory and memory.version for memory in memories(records, "sin")] == [-2, 0]


def test_tensors_of_inference_mode_have_version_0(tmp_path: Path) -> None:
    def program() -> None:
        with torch.inference_mode():
            x = torch.zeros(3)
            x.add_(1)
            x.exp()

    records = recorded(tmp_path, program)
    assert memories(records, "add_") == [Memory(0, 0, (1,)), Memory(0, 0, (1,))]
    assert memories(records, "exp") == [Memory(0, 0, (1,)), Memory(1, 0, (1,))]


def test_memory_that_is_used_again_has_another_number(tmp_path: Path) -> None:
    addresses: list[int] = []

    def program() -> None:
        for _ in range(50):
            x = torch.full((64,), 2.0)
            addresses.append(x.data_ptr())
            x.exp()
            del x

    records = recorded(tmp_path, program)
    assert len(set(addresses)) < 50, "the allocator gave no memory twice: this shows nothing"
    read = [record.memory for record in records if record.op.op_type == "exp" and record.io == "input"]
    assert len({memory.storage for memory in read if memory is not None}) == 50


def test_tensors_without_strides_have_no_memory_record(tmp_path: Path) -> None:
    def program() -> None:
        torch.sparse.mm(torch.eye(3).to_sparse(), torch.ones(3, 2))

    records = recorded(tmp_path, program)
    (sparse, dense) = [record for record in records if record.op.op_type.endswith("mm") and record.io == "input"][-2:]
    assert sparse.memory is None
    assert dense.memory is not None


def _train(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    net(x * 0.5).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_a_step_that_repeats_is_one_row_of_the_index(saved_data: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.randn(2, 1, 8, 8) for _ in range(6)]

    def program() -> None:
        for x in batches:
            _train(net, optimizer, x)
            gc.collect()

    recorded(tmp_path, program, saved_data=saved_data)
    with closing(sqlite3.connect(index_file(tmp_path))) as database:
        rows = database.execute("SELECT pattern FROM batches ORDER BY id").fetchall()
    assert len(rows) == 7, "six steps, and what ran after the last"
    assert len(set(rows[2:6])) == 1, "momenta are made in the first step, and known as such from the second on"


def test_constants_are_numbered_in_the_first_step_as_in_those_after_it(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).eval()
    other = torch.ones(2, 4, 6, 6)
    batches = [torch.randn(2, 1, 8, 8) for _ in range(4)]

    def program() -> None:
        with torch.no_grad():
            for x in batches:
                torch.addcmul(net(x), other, other)

    steps: dict[int, dict[str, Memory | None]] = {}
    for record in recorded(tmp_path, program, saved_data="full"):
        if "network" in record.op.op_name:
            steps.setdefault(record.op.step, {})[record.name] = record.memory
    assert len(steps[1]) > 8
    assert steps[1] == steps[2]
    first = [steps[0][name] for name in steps[1]]
    assert len(set(first)) == len(set(steps[1].values()))


def test_gradients_and_parameters_are_where_autograd_has_them(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    records = recorded(tmp_path, lambda: _train(net, optimizer, torch.ones(4, 3)))
    weights = [record.memory for record in records if record.source == "Parameter.weight"]
    assert {memory.storage for memory in weights if memory is not None} == {weights[0] and weights[0].storage}
    assert weights[0] is not None
    assert weights[0].strides == (1, 3), "addmm reads the transposed weight"
    (update,) = [record for record in records if record.op.op_name == "weight"]
    assert update.memory == replace(weights[0], strides=(3, 1), version=1)


def test_numbers_are_of_one_step() -> None:
    storages = Storages()
    x, y = torch.ones(2), torch.ones(2)
    assert [storages.memory_of(each) for each in (x, y, x)] == [
        Memory(0, 0, (1,)),
        Memory(1, 0, (1,)),
        Memory(0, 0, (1,)),
    ]
    storages.clear()
    x.add_(1)
    assert [storages.memory_of(each) for each in (y, x)] == [Memory(0, 0, (1,)), Memory(1, 0, (1,))]


def test_equal_memory_records_share_one_object() -> None:
    storages = Storages()
    x = torch.ones(2, 3)
    first = storages.memory_of(x)
    storages.clear()
    assert storages.memory_of(torch.ones(2, 3)) is first


def test_threads_get_different_numbers() -> None:
    storages = Storages()
    tensors = [[torch.ones(1) for _ in range(200)] for _ in range(4)]
    found: list[Memory | None] = []
    threads = [
        threading.Thread(target=lambda part=part: found.extend([storages.memory_of(each) for each in part]))
        for part in tensors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(memory.storage for memory in found if memory is not None) == sorted({*range(800)})


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda x: x.add_(1), id="add_"),
        pytest.param(lambda x: x.zero_(), id="zero_"),
        pytest.param(lambda x: x.copy_(torch.ones(4)), id="copy_"),
        pytest.param(lambda x: x.fill_(2), id="fill_"),
        pytest.param(lambda x: x.masked_fill_(x > 0, 1), id="masked_fill_"),
        pytest.param(lambda x: x.index_add_(0, torch.tensor([1]), torch.ones(1)), id="index_add_"),
        pytest.param(lambda x: x.index_put_((torch.tensor([1]),), torch.ones(1)), id="index_put_"),
        pytest.param(lambda x: x.scatter_(0, torch.tensor([1]), 3.0), id="scatter_"),
        pytest.param(lambda x: x.uniform_(), id="uniform_"),
        pytest.param(nn.functional.relu_, id="relu_"),
        pytest.param(lambda x: nn.functional.relu6(x, inplace=True), id="relu6_"),
        pytest.param(lambda x: nn.functional.dropout(x, 0.5, inplace=True), id="dropout_"),
        pytest.param(lambda x: torch.mul(x, 2, out=x), id="mul.out"),
        pytest.param(lambda x: torch._foreach_mul_([x], 0.5), id="_foreach_mul_"),
        pytest.param(lambda x: torch._foreach_add_([x], [x.clone()]), id="_foreach_add_"),
        pytest.param(lambda x: x.__setitem__(1, 5.0), id="setitem"),
        pytest.param(lambda x: x[1:].mul_(2), id="a part"),
        pytest.param(lambda x: torch.clamp_(x, 0, 1), id="clamp_"),
        pytest.param(lambda x: torch.sort(x.clone(), out=(x, torch.empty(4, dtype=torch.int64))), id="sort.out"),
    ],
)
def test_what_is_read_next_has_the_version_that_was_written(
    write: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    def program() -> None:
        x = torch.ones(4)
        x.sin()
        write(x)
        x.exp()

    records = recorded(tmp_path, program)
    storage = records[next(place for place, record in enumerate(records) if record.op.op_type == "sin")].memory
    assert storage is not None
    mine = [record for record in records if record.memory is not None and record.memory.storage == storage.storage]
    *_, last, read = mine
    assert read.op.op_type == "exp"
    assert last.io == "output"
    assert last.memory is not None
    assert read.memory is not None
    assert last.memory.version == read.memory.version
    assert read.memory.version > storage.version


def test_only_operators_that_increment_a_version_are_listed_as_counted() -> None:
    aten = torch.ops.aten
    assert schema_of(aten.add_.Tensor).counted == ((0, "self"),)
    assert schema_of(aten.add.out).counted == ((3, "out"),)
    assert schema_of(aten.add.Tensor).counted == ()
    assert schema_of(aten._foreach_add_.List).counted == ()


Saved = Literal["full", "statistic"]
SAVED: tuple[Saved, ...] = ("full", "statistic")


def inputs_of(folder: Path, op_type: str) -> list[Execution]:
    return [each for each in opdump.open(folder).executions(include_skipped=True) if each.op.op_type == op_type]


@pytest.mark.parametrize("saved", SAVED)
def test_memory_that_no_operator_wrote_is_recorded_where_it_is_read(saved: Saved, tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data=saved) as dump:
        a = torch.empty(4)
        a.numpy()[:] = [1, 2, 3, 4]
        torch.ones(4) * a
        a + 1
    assert dump.report is not None
    assert dump.report.tensors_skipped == {}
    for op_type, slot in (("mul", 1), ("add", 0)):
        (found,) = inputs_of(tmp_path, op_type)
        record = found.inputs[slot]
        assert (record.source, record.skip, record.statistics["max"]) == ("data-0", "", 4)
        assert saved != "full" or record.numpy().tolist() == [1, 2, 3, 4]


def test_each_part_of_memory_that_no_operator_wrote_is_recorded(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        a = torch.empty(8)
        a.numpy()[:] = range(8)
        a[:4].add_(1)
        a[4:] * 2
    (added,), (doubled,) = inputs_of(tmp_path, "add_"), inputs_of(tmp_path, "mul")
    assert (added.inputs[0].source, added.inputs[0].numpy().tolist()) == ("data-0", [0, 1, 2, 3])
    assert (doubled.inputs[0].source, doubled.inputs[0].numpy().tolist()) == ("data-1", [4, 5, 6, 7])


NOT_READ: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("fill_", lambda a: a.fill_(1)),
    ("copy_", lambda a: a.copy_(torch.ones(3, 3))),
    ("normal_", lambda a: a.normal_()),
    ("uniform_", lambda a: a.uniform_()),
    ("zeros_like", torch.zeros_like),
    ("new_ones", lambda a: a.new_ones(2)),
    ("add", lambda a: torch.add(torch.ones(3, 3), 1, out=a)),
    ("addmm", lambda a: torch.addmm(a, torch.ones(3, 3), torch.ones(3, 3), beta=0)),
    ("_foreach_copy_", lambda a: torch._foreach_copy_([a], [torch.ones(3, 3)])),
]


@pytest.mark.parametrize(("op_type", "run"), NOT_READ, ids=[name for name, _ in NOT_READ])
def test_memory_that_an_operator_does_not_read_is_not_looked_at(
    op_type: str, run: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        run(torch.empty(3, 3))
    (found,) = inputs_of(tmp_path, op_type)
    assert [record.skip for record in found.inputs.values() if record.skip] == ["allocation"]
    assert not any(record.source.startswith("data-") for record in found.inputs.values())


@pytest.mark.parametrize("follow", ["0", "strict"])
@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("make", [torch.empty, torch.zeros], ids=["empty", "zeros"])
def test_what_is_written_between_operators_is_read_again_in_each_step(
    make: Callable[..., torch.Tensor], saved: Saved, follow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPDUMP_FOLLOW", follow)
    kept = make(4)
    with opdump.capture(path=str(tmp_path), saved_data=saved) as dump:
        for step in range(6):
            a = make(4)
            for buffer in (a, kept):
                buffer.numpy()[:] = step + 1
                buffer * torch.ones(4)
                buffer.numpy()[2] = -step
                buffer * torch.ones(4)
            torch.addmm(make(2, 2), torch.ones(2, 2), torch.ones(2, 2), beta=0)
            dump.step()
    catalog = opdump.open(tmp_path)
    for step in range(6):
        found = [each for each in catalog.ops(step=step) if each.op.op_type == "mul"]
        assert [each.inputs[0].statistics["max"] for each in found] == [step + 1] * 4
        lowest = [each.inputs[0].statistics["min"] for each in found]
        assert lowest == [step + 1, -step, step + 1, -step]
        if saved == "full":
            assert [each.inputs[0].numpy()[2] for each in found] == lowest


def test_an_operator_that_read_what_numpy_wrote_agrees_when_it_runs_again(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        a = torch.empty(4)
        a.numpy()[:] = [1, 2, 3, 4]
        torch.exp(a)
    assert opdump.replay(tmp_path, "Default/exp-op2").verdict == "agrees"


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.empty, "in memory that no recorded operator wrote: data-0"),
        (torch.zeros, "in memory that was changed since Default/zeros-op0 by something other than an operator"),
    ],
    ids=["empty", "zeros"],
)
def test_a_nan_that_numpy_wrote_was_born_in_no_operator(
    make: Callable[..., torch.Tensor], words: str, saved: Saved, tmp_path: Path
) -> None:
    with opdump.capture(path=str(tmp_path), saved_data=saved) as dump:
        a = make(4)
        a.numpy()[:] = [1, 2, np.nan, 4]
        a * torch.ones(4)
    assert dump.report is not None
    verdict = dump.report.verdict
    assert (verdict.kind, verdict.op_type) == ("nan", "aten::mul.Tensor")
    assert words in verdict.how


@pytest.mark.parametrize("saved", SAVED)
def test_show_says_what_wrote_an_input_and_what_did_not(saved: Saved, tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data=saved):
        a, b, c = torch.empty(4), torch.zeros(4), torch.ones(4)
        a.numpy()[:] = b.numpy()[:] = [1, 2, 3, 4]
        torch.addcmul(a, b, c)
    shown = CliRunner().invoke(main, ["show", str(tmp_path), "--op", "addcmul"]).output.splitlines()
    makers = {line.split()[0]: line.split("  ")[-1].strip() for line in shown if line.strip().startswith("input.")}
    assert "  input.0: data-0 was not written by any recorded operator" in shown
    assert "  input.1: changed since Default/zeros-op1 by something other than an operator" in shown
    assert [makers[f"input.{slot}"] for slot in range(3)] == [
        *("data-0", "changed since Default/zeros-op1:0", "Default/ones-op2:0")
    ]


@pytest.mark.parametrize("steps", [2, 8], ids=["recorded", "followed"])
def test_what_an_earlier_step_made_names_its_maker(steps: int, tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with opdump.capture(path=str(tmp_path)):
        for _ in range(steps):
            loss = weight.pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    reads = inputs_of(tmp_path, "_local_scalar_dense")
    assert len(reads) == steps
    assert all("mean-op" in read.inputs[0].source for read in reads)
