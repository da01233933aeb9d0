"""Trainings on several processes: the same losses, gradients and parameters with and without capture, and every collective recorded."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from tests.cli.programs import python
from tests.torch.releases import NOT_WITH_GLOO, PIPELINES_INFER_SHAPES, lists_told

# PyTorch is imported once; then ranks are forked, first without capture, then with it.
PROGRAM = """
import json, os, sys, traceback
import torch, torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
import opdump

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def local(tensor):
    tensor = tensor.detach()
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).clone()

def trained(model, offset):
    optimizer, out = torch.optim.AdamW(model.parameters(), lr=0.1), []
    for step in range(2):
        optimizer.zero_grad()
        loss = model((torch.arange(32.0).view(4, 8) + offset + step) / 10).float().square().mean()
        loss.backward()
        out += [local(loss), *(local(each.grad) for each in model.parameters())]
        optimizer.step()
    return out + [local(each) for each in model.parameters()]

def halved(rank):
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return trained(model, rank)

def power(rank):
    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(model, rank)

def mixed(rank):
    model, policy = network(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (model[0], model[2], model): fully_shard(part, mp_policy=policy)
    return trained(model, rank)

def redistributed(rank):
    mesh = init_device_mesh("cpu", (2,))
    first = distribute_tensor(torch.arange(32.0).view(4, 8), mesh, [Shard(0)]).requires_grad_()
    whole = first.redistribute(mesh, [Replicate()])
    again = (whole * 2).redistribute(mesh, [Shard(0)])
    part = DTensor.from_local(torch.ones(4, 8) + rank, mesh, [Partial()])
    product = again @ distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
    loss = product.square().sum()
    loss.backward()
    parts = [part.redistribute(mesh, [Replicate()]), part.redistribute(mesh, [Shard(1)])]
    return [local(each) for each in (first, whole, again, product, loss, first.grad, *parts)]

def tensors(rank):
    mesh = init_device_mesh("cpu", (2,))
    return trained(parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), 0)

def sequences(rank):
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8))
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
    }
    return trained(parallelize_module(model, mesh, plan), 0)

def stages(rank, kind="ScheduleGPipe"):
    whole = network()
    part = whole[:2] if rank == 0 else whole[2:]
    stage = pipelining.PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = getattr(pipelining, kind)(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer, out = torch.optim.SGD(part.parameters(), lr=0.1), []
    for step in range(2):
        optimizer.zero_grad()
        losses = []
        given = ((torch.arange(64.0).view(8, 8) + step) / 10,) if rank == 0 else ()
        last = {} if rank == 0 else {"target": torch.ones(8, 4), "losses": losses}
        result = schedule.step(*given, **last)
        out += [local(each) for each in (*losses, *(each.grad for each in part.parameters()))]
        if rank == 1: out.append(local(result))
        optimizer.step()
    return out

def stages_in_turn(rank): return stages(rank, "Schedule1F1B")

def one(name, rank, kind):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store_{name}_{kind}", rank=rank, world_size=2)
    torch.save(globals()[name](rank), f"{name}_{kind}_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()

def ranks(name, kind):
    for rank in range(2):
        if os.fork() == 0:
            try:
                one(name, rank, kind)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
    return sorted(os.wait()[1] for _ in range(2))

for name in sys.argv[1:]:
    plain = ranks(name, "plain")
    with opdump.capture(path=name, saved_data="full", strict=name not in INCOMPLETE) as dump:
        seen = ranks(name, "seen")
    print(json.dumps([name, plain, seen, dump.report.warnings]))
"""
COLLECTIVES = {
    "halved": {"allreduce_": 2},
    "power": {"allreduce_": 2},
    "mixed": {"_allgather_base_": 4, "_reduce_scatter_base_": 4},
    "redistributed": {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1, "all_reduce": 1, "wait_tensor": 3},
    "tensors": {"all_reduce": 2, "wait_tensor": 2},
    "sequences": {"all_gather_into_tensor": 2, "reduce_scatter_tensor": 2, "wait_tensor": 4},
    "stages": {"send": 8, "recv_": 8},
    "stages_in_turn": {"send": 8, "recv_": 8},
}
"""The collectives that each rank must record at least."""
for _name in NOT_WITH_GLOO:
    del COLLECTIVES[_name]


def values(tensors: Any) -> list[Any]:
    return [tensor.payload.to_host().tolist() for tensor in tensors.values()]


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available() or sys.platform == "win32",
    reason="never: PyTorch has no gloo here",
)
@pytest.mark.timeout(900)  # several processes, possibly on a busy machine
def test_training_on_several_processes_gives_the_same_bits_and_every_collective_is_filed(tmp_path: Path) -> None:
    incomplete = ["stages", "stages_in_turn"] if PIPELINES_INFER_SHAPES else []
    (tmp_path / "ranks.py").write_text(f"INCOMPLETE = {incomplete}\n{PROGRAM}")
    done = python("-W", "ignore", "ranks.py", *COLLECTIVES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = {name: rest for name, *rest in lists_told(done.stdout)}
    assert said == {name: [[0, 0], [0, 0], []] for name in COLLECTIVES}, done.stderr
    for name, wanted in COLLECTIVES.items():
        for rank in (0, 1):
            expected, answer = (torch.load(tmp_path / f"{name}_{kind}_{rank}.pt") for kind in ("plain", "seen"))
            assert len(expected) == len(answer) > 3
            for one, other in zip(expected, answer, strict=True):
                assert torch.equal(one, other), (name, rank)
                assert one.dtype == other.dtype
            executions = list(opdump.open(tmp_path / name).executions(rank=rank, include_skipped=True))
            counts = Counter(each.op.op_type for each in executions)
            assert all(counts[op_type] >= count for op_type, count in wanted.items()), (name, counts)
            skipped = {
                each.op.op_type
                for each in executions
                for tensor in each.outputs.values()
                if tensor.skip == "no storage"
            }
            assert skipped <= ({"_to_copy", "zeros_like"} if name in incomplete else set()), (name, rank)
            collectives = [each for each in executions if each.op.op_type in wanted]
            assert {tensor.skip for each in collectives for tensor in each.outputs.values()} <= {""}, name
            for each in executions:
                if each.op.op_type == "wait_tensor":
                    assert values(each.inputs) == values(each.outputs), name
            if name == "mixed":
                # Each rank writes its own shard of a parameter that is spread over the ranks.
                parameters = [
                    each for each in executions if each.op.op_type == "Parameter" and each.op.op_name[0] in "02"
                ]
                assert [values(each.outputs) for each in parameters[-4:]] == [[each.tolist()] for each in expected[-4:]]
