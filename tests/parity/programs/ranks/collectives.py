"""Explicit collectives, synchronous and asynchronous: results are used at once or after a wait."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def program() -> Any:
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
