"""Calls with tensors that are spread over processes: each process writes its own shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import opdump
from opdump.plan import DumpPlan

pytestmark = pytest.mark.torch


@pytest.fixture
def _process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators may not:UserWarning")  # from PyTorch 2.6
@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize("level", ["op", "kernel", "all"])
def test_a_call_files_the_shards_of_its_arguments_and_results(
    level: Literal["op", "kernel", "all"], tmp_path: Path
) -> None:
    mesh = init_device_mesh("cpu", (1,))
    whole = torch.arange(12.0).reshape(4, 3) - 5
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    with opdump.capture(DumpPlan(path=tmp_path, layout="acl", dump_level=level)) as dump:
        torch.relu(sharded)
    assert dump.report is not None
    assert not dump.report.tensors_skipped
    read = [record for record in opdump.open(tmp_path).tensors() if record.op.op_type.lower() == "relu"]
    assert {record.io for record in read} == {"input", "output"}
    for record in read:
        assert record.payload is not None
        expected = whole if record.io == "input" else whole.relu()
        assert (record.payload.to_host() == expected.numpy()).all()
