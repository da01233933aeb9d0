"""Calls the operators of `torch.distributed` in a group of one process over gloo, with and without capture, and tells what differs.

    python -m tests.torch.registry.collectives report.json

Operators of `c10d` take a group and say nothing of what they write: they are called as PyTorch calls them, through the group.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines operators
from torch import Tensor

import opdump
from tests.torch.registry.states import WAYS, State, described, maker_of

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
ELSEWHERE = {
    "c10d::send": "needs a second process",
    "c10d::recv_": "needs a second process",
    "c10d::recv_any_source_": "needs a second process",
    "_c10d_functional::isend": "needs a second process",
    "_c10d_functional::irecv": "needs a second process",
    "_c10d_functional::batch_p2p_ops": "needs a second process",
    "_dtensor::mesh_get_process_group": "neither takes nor gives a tensor",
    "c10d::check_for_nan": "is called by the backend of CUDA alone",
}
Make = Callable[[], Tensor]
_F = torch.ops._c10d_functional
_A = torch.ops._c10d_functional_autograd


def calls(group: Any) -> dict[str, Callable[[Make], Any]]:
    """By the name of an operator how it is called, with tensors of four elements."""
    name = group.group_name
    return {
        "c10d::allreduce_": lambda x: group.allreduce([x()]),
        "c10d::allreduce_coalesced_": lambda x: group.allreduce_coalesced([x(), x()]),
        "c10d::broadcast_": lambda x: group.broadcast([x()], dist.BroadcastOptions()),
        "c10d::reduce_": lambda x: group.reduce([x()], dist.ReduceOptions()),
        "c10d::allgather_": lambda x: group.allgather([[x()]], [x()]),
        "c10d::_allgather_base_": lambda x: group._allgather_base(x(), x()),
        "c10d::allgather_coalesced_": lambda x: group.allgather_coalesced([[x(), x()]], [x(), x()]),
        "c10d::allgather_into_tensor_coalesced_": lambda x: group.allgather_into_tensor_coalesced([x()], [x()]),
        "c10d::gather_": lambda x: group.gather([[x()]], [x()], dist.GatherOptions()),
        "c10d::scatter_": lambda x: group.scatter([x()], [[x()]], dist.ScatterOptions()),
        "c10d::reduce_scatter_": lambda x: group.reduce_scatter([x()], [[x()]]),
        "c10d::_reduce_scatter_base_": lambda x: group._reduce_scatter_base(x(), x()),
        "c10d::reduce_scatter_tensor_coalesced_": lambda x: group.reduce_scatter_tensor_coalesced([x()], [x()]),
        "c10d::alltoall_base_": lambda x: group.alltoall_base(x(), x(), [4], [4]),
        "c10d::alltoall_": lambda x: group.alltoall([x()], [x()]),
        "c10d::barrier": lambda _: group.barrier(),
        "c10d::monitored_barrier_": lambda _: group.monitored_barrier(),
        "_c10d_functional::all_reduce": lambda x: _F.all_reduce(x(), "sum", name),
        "_c10d_functional::all_reduce_": lambda x: _F.all_reduce_(x(), "sum", name),
        "_c10d_functional::all_reduce_coalesced": lambda x: _F.all_reduce_coalesced([x(), x()], "sum", name),
        "_c10d_functional::all_reduce_coalesced_": lambda x: _F.all_reduce_coalesced_([x(), x()], "sum", name),
        "_c10d_functional::all_gather_into_tensor": lambda x: _F.all_gather_into_tensor(x(), 1, name),
        "_c10d_functional::all_gather_into_tensor_out": lambda x: _F.all_gather_into_tensor_out(x(), 1, name, out=x()),
        "_c10d_functional::all_gather_into_tensor_coalesced": lambda x: _F.all_gather_into_tensor_coalesced(
            [x(), x()], 1, name
        ),
        "_c10d_functional::reduce_scatter_tensor": lambda x: _F.reduce_scatter_tensor(x(), "sum", 1, name),
        "_c10d_functional::reduce_scatter_tensor_out": lambda x: _F.reduce_scatter_tensor_out(
            x(), "sum", 1, name, out=x()
        ),
        "_c10d_functional::reduce_scatter_tensor_coalesced": lambda x: _F.reduce_scatter_tensor_coalesced(
            [x(), x()], "sum", 1, name
        ),
        "_c10d_functional::all_to_all_single": lambda x: _F.all_to_all_single(x(), [4], [4], name),
        "_c10d_functional::broadcast": lambda x: _F.broadcast(x(), 0, name),
        "_c10d_functional::broadcast_": lambda x: _F.broadcast_(x(), 0, name),
        "_c10d_functional::wait_tensor": lambda x: _F.wait_tensor(x()),
        "_c10d_functional::_wrap_tensor_autograd": lambda x: _F._wrap_tensor_autograd(x()),
        "_c10d_functional_autograd::all_gather_into_tensor": lambda x: _A.all_gather_into_tensor(x(), 1, name),
        "_c10d_functional_autograd::all_to_all_single": lambda x: _A.all_to_all_single(x(), [4], [4], name),
        "_c10d_functional_autograd::reduce_scatter_tensor": lambda x: _A.reduce_scatter_tensor(x(), "sum", 1, name),
        "_dtensor::shard_dim_alltoall": lambda x: torch.ops._dtensor.shard_dim_alltoall(x().view(2, 2), 0, 1, name),
    }


def tried(call: Callable[[Make], Any], way: str) -> State:
    """Calls an operator on tensors that nobody has used, waits for it, and describes what it leaves."""
    arguments: list[Tensor] = []

    def made() -> Tensor:
        arguments.append(maker_of(way)(torch.arange(4.0) + len(arguments)))
        return arguments[-1]

    with ExitStack() as stack:
        if way.startswith("inference"):
            stack.enter_context(torch.inference_mode())
        try:
            result = call(made)
            if isinstance(result, dist.Work):
                result.wait()
                result = None
            results = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
            results = [_F.wait_tensor(leaf) for leaf in results]
        except Exception as error:  # noqa: BLE001  # what it refuses, it must refuse in both runs
            return {"refused": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"}
    values = {f"values {place}": tensor.tolist() for place, tensor in enumerate([*arguments, *results])}
    return described(arguments, results) | values


def main(report: str) -> None:
    dist.init_process_group(
        "gloo", init_method=Path(report).with_suffix(".store").absolute().as_uri(), rank=0, world_size=1
    )
    table = calls(dist.distributed_c10d._get_default_group())
    ways = [way for way in WAYS if way != "autocast"]
    plain = {(name, way): tried(call, way) for name, call in table.items() for way in ways}
    with TemporaryDirectory() as place, opdump.capture(path=Path(place) / "dump", strict=False):
        captured = {(name, way): tried(call, way) for name, call in table.items() for way in ways}
    dist.destroy_process_group()
    registered = [str(name) for name in torch._C._dispatch_get_all_op_names()]
    told = {
        "known": sorted([*table, *ELSEWHERE]),
        "registered": sorted(name for name in registered if name.partition("::")[0] in NAMESPACES),
        "refused": sorted({name for name, way in plain if way == "plain" and "refused" in plain[name, way]}),
        "differing": {
            f"{name}, {way}": [f"{key}: {state.get(key)} plainly, {captured[name, way].get(key)}" for key in state]
            for (name, way), state in plain.items()
            if state != captured[name, way]
        },
        "ways": sum("refused" not in state for state in plain.values()),
    }
    Path(report).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
