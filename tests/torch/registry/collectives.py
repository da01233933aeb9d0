"""Calls the operators of `torch.distributed` in a group of two processes over gloo, with and without capture, and reports differences.

    python -m tests.torch.registry.collectives report.json

Operators of `c10d` take a group and their schemas do not declare what they write. They are called through the group, as PyTorch calls them.
The record of each call is compared with the values that the program had before the call and after it waited.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers operators
from torch import Tensor

import opdump
from tests.torch.registry.states import WAYS, State, described, maker_of

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
ELSEWHERE = {
    "_dtensor::mesh_get_process_group": "neither takes nor gives a tensor",
    "c10d::check_for_nan": "is called by the backend of CUDA alone",
}
_WITHOUT_OUTPUT = {"c10d::barrier", "c10d::monitored_barrier_", "c10d::send", "_c10d_functional::isend"}
_NO_VALUES = {"allocation", "empty"}
"""Reasons for missing values: a barrier gets uninitialised memory, and a functional send returns nothing."""
_F = torch.ops._c10d_functional
_A = torch.ops._c10d_functional_autograd


class Tensors:
    """Makes the tensors of one call. Every tensor has different numbers, on each rank."""

    def __init__(self, make: Callable[[Tensor], Tensor], rank: int) -> None:
        self.all: list[Tensor] = []
        self.written: list[int] = []
        """Indices of the tensors that the call writes into."""
        self.before: list[list[float]] = []
        self._make = make
        self._rank = rank

    def read(self, size: int = 4) -> Tensor:
        values = torch.arange(float(size)) + 10 * len(self.all) + 100 * self._rank
        self.before.append(values.tolist())
        self.all.append(self._make(values))
        return self.all[-1]

    def write(self, size: int = 4) -> Tensor:
        self.written.append(len(self.all))
        return self.read(size)


Call = Callable[[Tensors], Any]


def calls(group: Any, rank: int) -> dict[str, Call]:
    """How to call each operator, by its name."""
    name, peer = group.group_name, 1 - rank

    def point_to_point(t: Tensors) -> Any:
        return [group.send([t.read()], peer, 0), group.recv([t.write()], peer, 0)]

    def from_any_source(t: Tensors) -> Any:
        return [group.send([t.read()], peer, 0), group.recv_anysource([t.write()], 0)]

    def functional_point_to_point(t: Tensors) -> Any:
        return [_F.isend(t.read(), peer, 0, name), _F.irecv(t.write(), peer, 0, name)]

    def gather(t: Tensors) -> Any:
        options = dist.GatherOptions()
        options.rootRank = 0
        return group.gather([[t.write(), t.write()]] if rank == 0 else [], [t.read()], options)

    def scatter(t: Tensors) -> Any:
        options = dist.ScatterOptions()
        options.rootRank = 0
        return group.scatter([t.write()], [[t.read(), t.read()]] if rank == 0 else [], options)

    return {
        "c10d::allreduce_": lambda t: group.allreduce([t.write()]),
        "c10d::allreduce_coalesced_": lambda t: group.allreduce_coalesced([t.write(), t.write()]),
        "c10d::broadcast_": lambda t: group.broadcast([t.write()], dist.BroadcastOptions()),
        "c10d::reduce_": lambda t: group.reduce([t.write()], dist.ReduceOptions()),
        "c10d::allgather_": lambda t: group.allgather([[t.write(), t.write()]], [t.read()]),
        "c10d::_allgather_base_": lambda t: group._allgather_base(t.write(8), t.read()),
        "c10d::allgather_coalesced_": lambda t: group.allgather_coalesced(
            [[t.write(), t.write(2)], [t.write(), t.write(2)]], [t.read(), t.read(2)]
        ),
        "c10d::allgather_into_tensor_coalesced_": lambda t: group.allgather_into_tensor_coalesced(
            [t.write(8)], [t.read()]
        ),
        "c10d::gather_": gather,
        "c10d::scatter_": scatter,
        "c10d::reduce_scatter_": lambda t: group.reduce_scatter([t.write()], [[t.read(), t.read()]]),
        "c10d::_reduce_scatter_base_": lambda t: group._reduce_scatter_base(t.write(2), t.read()),
        "c10d::reduce_scatter_tensor_coalesced_": lambda t: group.reduce_scatter_tensor_coalesced(
            [t.write(2)], [t.read()]
        ),
        "c10d::alltoall_base_": lambda t: group.alltoall_base(t.write(), t.read(), [2, 2], [2, 2]),
        "c10d::alltoall_": lambda t: group.alltoall([t.write(), t.write()], [t.read(), t.read()]),
        "c10d::barrier": lambda _: group.barrier(),
        "c10d::monitored_barrier_": lambda _: group.monitored_barrier(),
        "c10d::send": point_to_point,
        "c10d::recv_": point_to_point,
        "c10d::recv_any_source_": from_any_source,
        "_c10d_functional::isend": functional_point_to_point,
        "_c10d_functional::irecv": functional_point_to_point,
        "_c10d_functional::batch_p2p_ops": lambda t: _F.batch_p2p_ops(
            ["isend", "irecv", "irecv", "isend"],
            [peer] * 4,
            [0, 0, 1, 1],
            [t.read(), t.write(), t.write(), t.read()],
            name,
        ),
        "_c10d_functional::all_reduce": lambda t: _F.all_reduce(t.read(), "sum", name),
        "_c10d_functional::all_reduce_": lambda t: _F.all_reduce_(t.write(), "sum", name),
        "_c10d_functional::all_reduce_coalesced": lambda t: _F.all_reduce_coalesced([t.read(), t.read()], "sum", name),
        "_c10d_functional::all_reduce_coalesced_": lambda t: _F.all_reduce_coalesced_(
            [t.write(), t.write()], "sum", name
        ),
        "_c10d_functional::all_gather_into_tensor": lambda t: _F.all_gather_into_tensor(t.read(), 2, name),
        "_c10d_functional::all_gather_into_tensor_out": lambda t: _F.all_gather_into_tensor_out(
            t.read(), 2, name, out=t.write(8)
        ),
        "_c10d_functional::all_gather_into_tensor_coalesced": lambda t: _F.all_gather_into_tensor_coalesced(
            [t.read(), t.read()], 2, name
        ),
        "_c10d_functional::reduce_scatter_tensor": lambda t: _F.reduce_scatter_tensor(t.read(), "sum", 2, name),
        "_c10d_functional::reduce_scatter_tensor_out": lambda t: _F.reduce_scatter_tensor_out(
            t.read(), "sum", 2, name, out=t.write(2)
        ),
        "_c10d_functional::reduce_scatter_tensor_coalesced": lambda t: _F.reduce_scatter_tensor_coalesced(
            [t.read(), t.read()], "sum", 2, name
        ),
        "_c10d_functional::all_to_all_single": lambda t: _F.all_to_all_single(t.read(), [2, 2], [2, 2], name),
        "_c10d_functional::broadcast": lambda t: _F.broadcast(t.read(), 0, name),
        "_c10d_functional::broadcast_": lambda t: _F.broadcast_(t.write(), 0, name),
        "_c10d_functional::wait_tensor": lambda t: _F.wait_tensor(t.read()),
        "_c10d_functional::_wrap_tensor_autograd": lambda t: _F._wrap_tensor_autograd(t.read()),
        "_c10d_functional_autograd::all_gather_into_tensor": lambda t: _A.all_gather_into_tensor(t.read(), 2, name),
        "_c10d_functional_autograd::all_to_all_single": lambda t: _A.all_to_all_single(t.read(), [2, 2], [2, 2], name),
        "_c10d_functional_autograd::reduce_scatter_tensor": lambda t: _A.reduce_scatter_tensor(
            t.read(), "sum", 2, name
        ),
        "_dtensor::shard_dim_alltoall": lambda t: torch.ops._dtensor.shard_dim_alltoall(
            t.read().view(2, 2), 0, 1, name
        ),
    }


def programs(rank: int) -> dict[str, Call]:
    """Functions of PyTorch above its operators: several operators in one call, or objects in tensors."""
    peer = 1 - rank

    def batch(t: Tensors) -> Any:
        return dist.batch_isend_irecv([dist.P2POp(dist.isend, t.read(), peer), dist.P2POp(dist.irecv, t.write(), peer)])

    def in_turn(t: Tensors) -> None:
        steps: list[Callable[[], Any]] = [lambda: dist.send(t.read(), peer), lambda: dist.recv(t.write(), peer)]
        for step in steps if rank == 0 else steps[::-1]:
            step()

    def coalesced(t: Tensors) -> None:
        manager: Any = dist.distributed_c10d._coalescing_manager
        with manager(async_ops=True) as together:
            dist.all_reduce(t.write())
            dist.all_reduce(t.write())
        together.wait()

    def objects(_: Tensors) -> list[Tensor]:
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, {"rank": rank})
        sent = [f"of {rank}"]
        dist.broadcast_object_list(sent, 1)
        got: list[Any] = [None]
        dist.scatter_object_list(got, [3, 4] if rank == 0 else None, 0)
        root: list[Any] | None = [None, None] if rank == 0 else None
        dist.gather_object(rank + 5, root, 0)
        return [torch.tensor([ord(letter) for letter in repr((gathered, sent, got, root))])]

    return {"batch": batch, "in turn": in_turn, "coalescing manager": coalesced, "objects": objects}


def tried(call: Call, way: str, rank: int, seen: list[Tensors] | None = None) -> State:
    """Call an operator on new tensors, wait for it, and describe the result; `seen` receives the tensors and results."""
    tensors, results = Tensors(maker_of(way), rank), Tensors(Tensor.clone, rank)
    with ExitStack() as stack:
        if way.startswith("inference"):
            stack.enter_context(torch.inference_mode())
        try:
            found = call(tensors)
            found = found if isinstance(found, list | tuple) else [found]
            for work in (each for each in found if isinstance(each, dist.Work)):
                work.wait()
            results.all = [_F.wait_tensor(each) for each in found if isinstance(each, Tensor)]
        except Exception as error:  # noqa: BLE001  # what it refuses, it must refuse in both runs
            return {"refused": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"}
    if seen is not None:
        seen += [tensors, results]
    values = {f"values {place}": tensor.tolist() for place, tensor in enumerate([*tensors.all, *results.all])}
    return described(tensors.all, results.all) | values


def untrue(name: str, seen: list[Tensors], executions: list[Any]) -> list[str]:
    """The differences between the record of one call and the program's values."""
    found = [each for each in executions if each.op.kernel.partition(".")[0] == name]
    if len(found) != (2 if name == "_c10d_functional::wait_tensor" else 1):  # each result is waited for
        return [f"{len(found)} times in the dump, with {sorted({each.op.kernel for each in executions})}"]
    told = []
    for each in executions:
        if each.op.op_type == "wait_tensor":
            given, got = (
                [tensor.payload.to_host().tolist() for tensor in side.values() if not tensor.skip]
                for side in (each.inputs, each.outputs)
            )
            if given != got:
                told.append(f"waited for {given} and got {got}")
    tensors, results = seen
    before = tensors.before
    after = [tensors.all[place].tolist() for place in tensors.written] or [each.tolist() for each in results.all]
    if name in _WITHOUT_OUTPUT:
        after = []
    for io, recorded in (("input", found[0].inputs), ("output", found[0].outputs)):
        skipped = [tensor.skip for tensor in recorded.values() if tensor.skip not in ("", *_NO_VALUES)]
        values = [tensor.payload.to_host().flatten().tolist() for tensor in recorded.values() if not tensor.skip]
        if skipped:
            told.append(f"{io}: {skipped}")
        elif io == "output" and sorted(values) != sorted(map(_flat, after)):
            told.append(f"{io}: {values} in the dump, {after} in the program")
        elif io == "input" and any(each not in before for each in values):
            told.append(f"{io}: {values} in the dump, {before} in the program")
    return told


def _flat(values: Any) -> list[float]:
    return [each for row in values for each in (row if isinstance(row, list) else [row])]


def work(folder: Path, rank: int) -> Mapping[str, Any]:
    """What one of the two processes finds."""
    store = (folder / "store").absolute().as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(minutes=5))
    table = calls(dist.distributed_c10d._get_default_group(), rank)
    every = {**table, **programs(rank)}
    ways = [way for way in WAYS if way != "autocast"]
    plain = {(name, way): tried(call, way, rank) for name, call in every.items() for way in ways}
    with opdump.capture(path=folder / f"all {rank}", strict=False):
        captured = {(name, way): tried(call, way, rank) for name, call in every.items() for way in ways}
    seen: dict[str, list[Tensors]] = {name: [] for name in table}
    with opdump.capture(path=folder / f"values {rank}", steps="manual", saved_data="full") as dump:
        for name, call in table.items():
            tried(call, "plain", rank, seen[name])
            dump.step()
    dist.destroy_process_group()
    catalog = opdump.open(folder / f"values {rank}")
    refused = sorted({name for name, way in plain if way == "plain" and "refused" in plain[name, way]})
    told = {
        name: untrue(name, seen[name], list(catalog.executions(step=step, include_skipped=True)))
        for step, name in enumerate(table)
        if name not in refused and name != "_c10d_functional::_wrap_tensor_autograd"
    }
    registered = [str(name) for name in torch._C._dispatch_get_all_op_names()]
    return {
        "known": sorted([*table, *ELSEWHERE]),
        "registered": sorted(name for name in registered if name.partition("::")[0] in NAMESPACES),
        "refused": {name: plain[name, "plain"]["refused"] for name in refused},
        "differing": {
            f"{name}, {way}": [f"{key}: {state.get(key)} plainly, {captured[name, way].get(key)}" for key in state]
            for (name, way), state in plain.items()
            if state != captured[name, way]
        },
        "untrue": {name: each for name, each in told.items() if each},
        "ways": sum("refused" not in state for state in plain.values()),
    }


def main(report: Path) -> None:
    report.parent.mkdir(exist_ok=True)
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            try:
                (report.parent / f"{rank}.json").write_text(json.dumps(work(report.parent, rank)), encoding="utf-8")
            except BaseException:  # noqa: BLE001  # it would propagate into the parent's code
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)
    told = [json.loads((report.parent / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    report.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
