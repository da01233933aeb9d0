"""Runs whose ranks share the work differently cannot be compared; runs of the same layout are compared rank by rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.commands.run_options import new_directory
from opdump.comparison.result import Result
from tests.cli.programs import opdump as run_opdump

PROGRAM = """
import multiprocessing, os, sys
import torch
import torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

def train(way, rank, ranks):
    torch.manual_seed(0)
    net = Net()
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    if way != "single":
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="localhost")
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{way}{ranks}.store", rank=rank, world_size=ranks)
    if way in ("ddp", "zero", "fsdp", "flat", "fault"):
        each = 4 // ranks
        x, y = x[rank * each : (rank + 1) * each], y[rank * each : (rank + 1) * each]
    if way in ("ddp", "zero", "fault"):
        net = nn.parallel.DistributedDataParallel(net)
    elif way == "flat":
        from torch.distributed.fsdp import FullyShardedDataParallel
        net = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    elif way == "fsdp":
        from torch.distributed.fsdp import fully_shard
        fully_shard(net.up)
        fully_shard(net.down)
        fully_shard(net)
    elif way in ("mesh12", "mesh21"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cpu", (int(way[-2]), int(way[-1])), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        x, y = (each.chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()] for each in (x, y))
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: dist.all_reduce(parameter.grad.to_local(), group=mesh["dp"].get_group())
            )
    elif way in ("tp", "sp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        shared = {"input_layouts": Shard(0)} if way == "sp" else {}
        given = {"output_layouts": Shard(0)} if way == "sp" else {}
        plan = {"up": ColwiseParallel(**shared), "down": RowwiseParallel(**given)}
        parallelize_module(net, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)), plan)
        if way == "sp":
            x, y = x.chunk(ranks)[rank], y.chunk(ranks)[rank]
    if way == "pipeline":
        part, other = (net.up, net.down)[rank], 1 - rank
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            if rank == 0:
                hidden, gradient = part(x), torch.empty(4, 16)
                dist.send(hidden.detach(), 1)
                dist.recv(gradient, 1)
                hidden.backward(gradient)
            else:
                received = torch.zeros(4, 16, requires_grad=True)
                dist.recv(received.data, 0)
                (part(torch.relu(received)) - y).pow(2).mean().backward()
                dist.send(received.grad, 0)
            optimizer.step()
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if way == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer
            optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            out = net(x)
            if way == "fault" and rank == 1:
                out = out * 1.5
            (out - y).pow(2).mean().backward()
            optimizer.step()
    if way != "single":
        dist.destroy_process_group()

if __name__ == "__main__":
    way, ranks = sys.argv[1], int(sys.argv[2])
    if way == "single":
        train(way, 0, 1)
    else:
        processes = [multiprocessing.get_context("fork").Process(target=train, args=(way, rank, ranks)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
"""

Recorded = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The dump of one way to share the work among N ranks; each is recorded once."""
    folder = tmp_path_factory.mktemp("layouts")
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    known: dict[tuple[str, int], Path] = {}

    def record(way: str, ranks: int) -> Path:
        path = known.get((way, ranks))
        if path is None:
            path = known[way, ranks] = folder / f"{way}{ranks}"
            run = run_opdump("run", "--path", str(path), "train.py", way, str(ranks), cwd=folder)
            assert run.returncode == 0, run.stderr
        return path

    return record


def _incomparable(a: Path, b: Path) -> Result:
    result = opdump.compare(a, b)
    assert result.verdict == "incomparable", result.headline
    assert not result.introduced
    run = CliRunner().invoke(main, ["compare", str(a), str(b)])
    assert run.exit_code == 3
    assert result.headline in run.output
    return result


@pytest.mark.parametrize("way", ["ddp", "zero", "fsdp", "tp", "sp", "pipeline"])
def test_a_run_on_several_ranks_is_not_compared_with_one_on_a_single_rank(recorded: Recorded, way: str) -> None:
    single, several = recorded("single", 1), recorded(way, 2)
    assert _incomparable(single, several).headline == "INCOMPARABLE: A ran on 1 rank, B on 2"
    assert _incomparable(several, single).headline == "INCOMPARABLE: A ran on 2 ranks, B on 1"


def test_both_layouts_are_named_as_far_as_they_were_seen(recorded: Recorded) -> None:
    notes = _incomparable(recorded("single", 1), recorded("fsdp", 2)).notes
    assert notes[0].startswith("A: 1 rank; no collectives; a rank has up.bias (16,), up.weight (8, 16), ")
    assert notes[1].startswith(
        "B: 2 ranks; collectives of a step: 8 all-gather, 4 reduce-scatter; a rank has up.weight (64,)"
    )


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ("ddp", "tp", "up.bias has 16 elements on each rank of A and 8 + 8 in B"),
        ("ddp", "fsdp", "up.bias has 16 elements on each rank of A and 8 + 8 in B"),
        ("fsdp", "tp", "down.bias has 4 + 4 elements in A and 8 on each rank of B"),
        ("ddp", "pipeline", "A uses all-reduce, broadcast, B receive, send"),
        ("tp", "sp", "A uses all-reduce, B all-gather, reduce-scatter"),
        ("fsdp", "flat", "no parameter is in both; A has up.weight, B has _flat_param"),
        ("ddp", "zero", "the optimizer of A uses no collectives, that of B broadcast"),
        ("mesh12", "mesh21", "up.bias has 8 + 8 elements in A and 16 on each rank of B"),
    ],
)
def test_as_many_ranks_with_other_shards_are_not_compared(recorded: Recorded, a: str, b: str, why: str) -> None:
    headline = _incomparable(recorded(a, 2), recorded(b, 2)).headline
    assert headline.removeprefix("INCOMPARABLE: A and B share the work of 2 ranks differently: ") == why


def test_two_numbers_of_ranks_are_not_compared(recorded: Recorded) -> None:
    assert _incomparable(recorded("ddp", 2), recorded("ddp", 4)).headline == "INCOMPARABLE: A ran on 2 ranks, B on 4"


def test_ranks_of_one_layout_are_all_compared_and_the_verdict_names_the_rank(recorded: Recorded) -> None:
    clean, fault = recorded("ddp", 2), recorded("fault", 2)
    assert opdump.compare(clean, clean).verdict == "identical"
    result = opdump.compare(clean, fault)
    assert (result.verdict, list(result.ranks)) == ("divergent", [0, 1])
    assert result.introduced[0].op.rank_id == 1
    assert " on rank 1: " in result.headline
    # The tensors that rank 0 receives from the other rank are not its own sources.
    assert all(each.op.op_type == "allreduce_" for each in result.introduced if each.op.rank_id == 0)
    assert all(" on rank " in each.headline for each in result.introduced)


@pytest.mark.parametrize("prefix", ["OMPI_COMM_WORLD_", "PMI_"])
def test_processes_of_mpirun_without_a_group_are_ranks(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(name: str, rank: int, ranks: int, factor: float = 1.0) -> None:
        monkeypatch.setenv(f"{prefix}RANK", str(rank))
        monkeypatch.setenv(f"{prefix}SIZE", str(ranks))
        with opdump.capture(path=tmp_path / name):
            torch.ones(3).mul(2.0 * factor).sum()

    for rank in (0, 1):
        record("two", rank, 2)
        record("fault", rank, 2, 1.0 + rank)
    assert new_directory("train.py", os.environ) == str(Path.cwd() / f"opdump-train-{os.getppid()}")
    record("one", 0, 1)
    assert "on rank 1" in opdump.compare(tmp_path / "two", tmp_path / "fault").headline
    unlike = opdump.compare(tmp_path / "two", tmp_path / "one")
    assert unlike.headline == "INCOMPARABLE: A ran on 2 ranks, B on 1"
    assert [note.split(";")[0] for note in unlike.notes] == ["A: 2 ranks", "B: 1 rank"]
