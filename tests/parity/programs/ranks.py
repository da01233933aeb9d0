"""Programs of two processes, connected by gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.parity.training_run import left_behind


def collectives() -> Any:
    """Explicit collectives, synchronous and asynchronous: results are used at once or after a wait."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0) + rank
    summed, largest, told = x.clone(), x.clone(), x.clone()
    dist.all_reduce(summed)
    work = dist.all_reduce(largest, op=dist.ReduceOp.MAX, async_op=True)
    dist.broadcast(told, src=1)
    gathered = [torch.empty(4) for _ in range(size)]
    dist.all_gather(gathered, x)
    cut = torch.empty(2)
    dist.reduce_scatter(cut, list(x.chunk(2)))
    exchanged = torch.empty(4)
    dist.all_to_all_single(exchanged, x)
    work.wait()
    other = torch.empty(4)
    if rank == 0:
        dist.send(x, 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0)
        dist.send(x, 0)
    whole = torch.empty(size * 4)
    dist.all_gather_into_tensor(whole, x * 2)
    return summed, largest, told, gathered, cut, exchanged, other, whole


def data_parallel() -> Any:
    """DistributedDataParallel: gradients reduced in buckets, accumulation without synchronisation, broadcast buffers."""
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    model = DistributedDataParallel(plain, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randn(3, 4)).square().mean().backward()
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(plain)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.down(self.up(x).relu())
        return answer


def distributed_tensors() -> Any:
    """DTensor: shards and replicas, their products, and a network split by columns and rows."""
    mesh = init_device_mesh("cpu", (2,))
    left = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    right = distribute_tensor(torch.randn(6, 4), mesh, [Replicate()])
    product = (left @ right).redistribute(placements=[Shard(1)])
    total = product.sum().full_tensor()
    model = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    data, losses = torch.randn(3, 4), []
    for _ in range(2):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert Partial().is_partial()
    return product.to_local(), total, losses, [each.full_tensor() for each in model.parameters()]


def fully_sharded() -> Any:
    """FSDP2: parameters are shards, gathered for a block and freed afterwards."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2)))
    for block in model:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        loss = model(torch.randn(3, 4)).float().square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        gradients = [each.grad.to_local().clone() for each in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss, norm]
    return losses, gradients, [each.full_tensor() for each in model.parameters()]


def pipeline() -> Any:
    """A pipeline of two stages that send activations forward and gradients back, microbatch by microbatch."""
    rank = dist.get_rank()
    parts = [nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 2)]
    stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    data, target, losses = torch.randn(4, 4), torch.randn(4, 2), []
    if rank == 0:
        schedule.step(data)
    else:
        schedule.step(target=target, losses=losses)
    return losses, [each.grad for each in parts[rank].parameters()]


def zero_optimizer() -> Any:
    """DDP with a compression hook and an optimizer whose state is sharded over the ranks, then synchronised batch norm."""
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = DistributedDataParallel(plain, gradient_as_bucket_view=True, static_graph=True)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(plain)
