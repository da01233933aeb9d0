"""Records contain where each tensor lay: in which storage of the step, where in it, and how often it had been written."""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opdump
from opdump.adapters.torch.memory import Storages
from opdump.adapters.torch.schemas import schema_of
from opdump.records import Memory, TensorRecord
from tests.layouts.index_files import index_file


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
