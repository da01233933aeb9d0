"""Trainings and calls on several processes: the same values with and without capture, and every collective recorded."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import opdump
from opdump.plan import DumpPlan
from tests.cli.programs import python
from tests.torch.programs import RANKS
from tests.torch.releases import NOT_WITH_GLOO, PIPELINES_INFER_SHAPES, lists_told

pytestmark = pytest.mark.torch

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

@RANKS@
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
    (tmp_path / "ranks.py").write_text(f"INCOMPLETE = {incomplete}\n{PROGRAM.replace('@RANKS@', RANKS)}")
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


RPC = """
import json, os, sys, traceback
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
import opdump

NETWORK = torch.nn.Linear(4, 2)
with torch.no_grad():
    for place, parameter in enumerate(NETWORK.parameters()): parameter.copy_(torch.arange(1.0, 1 + parameter.numel()).view_as(parameter) / 8)

def far(x): return x.sinh() * 2
def network(x): return NETWORK(x)
def back(x): return rpc.rpc_sync("worker0", far, args=(x.cosh(),)) + 1
def failing(x): return x.exp() + torch.ones(3)
@torch.jit.script
def scripted(x: torch.Tensor): return x.tanh()

@rpc.functions.async_execution
def later(x):
    return rpc.rpc_async("worker0", far, args=(x,)).then(lambda future: future.wait().atan())

class Counter:
    def __init__(self, start): self.value = start.exp2()
    def add(self, x): self.value = self.value.hypot(x); return self.value

def asked():
    x, out = torch.arange(4.0), {}
    out["sync"] = rpc.rpc_sync("worker1", far, args=(x,))
    out["async"] = rpc.rpc_async("worker1", network, args=(x,)).wait()
    out["nested"] = rpc.rpc_sync("worker1", back, args=(x,))
    out["later"] = rpc.rpc_sync("worker1", later, args=(x,))
    reference = rpc.remote("worker1", Counter, args=(x,))
    out["method"] = reference.rpc_sync().add(x + 1)
    out["method again"] = reference.remote().add(x + 2).to_here()
    out["own"] = rpc.rpc_sync("worker0", far, args=(x,))
    try: rpc.rpc_sync("worker1", failing, args=(x,))
    except RuntimeError as error:
        # Its text is the traceback there, with the frames between the operator and its kernel.
        out["error"] = [line for line in str(error).splitlines() if "rpc_calls" in line or line[:1] not in (" ", "")]
    return out

def unseen():
    x, out = torch.arange(4.0), {}
    out["operator"] = rpc.rpc_sync("worker1", torch.add, args=(x, 1))
    out["operator there"] = rpc.remote("worker1", torch.mul, args=(x, 3)).to_here()
    out["script"] = rpc.rpc_sync("worker1", scripted, args=(x,))
    w = torch.ones(4, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync("worker1", far, args=(w,)).sum()])
        out["gradient"] = dist_autograd.get_gradients(context)[w].clone()
    return out

def one(name, rank, kind):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.getcwd()}/store_{name}_{kind}", num_worker_threads=4)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    answer = globals()[name]() if rank == 0 else {}
    rpc.shutdown()
    if rank == 0: torch.save(answer, f"{name}_{kind}.pt")

@RANKS@
for name in sys.argv[1:]:
    plain = ranks(name, "plain")
    with opdump.capture(path=name, saved_data="full") as dump:
        seen = ranks(name, "seen")
    children = sorted([child.rank_id, child.end] for child in dump.report.children)
    print(json.dumps([name, plain, seen, children, dump.report.warnings]))
"""
needs_rpc = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.rpc.is_available() or sys.platform == "win32",
    reason="never: PyTorch has no RPC here",
)


def run(folder: Path, name: str) -> list[str]:
    """Run this part of PROGRAM in two workers, plain and captured, and return the warnings of the report."""
    (folder / "workers.py").write_text(RPC.replace("@RANKS@", RANKS))
    done = python("-W", "ignore", "workers.py", name, cwd=folder)
    assert done.returncode == 0, done.stderr
    ((said, plain, captured, children, warnings),) = lists_told(done.stdout)
    assert (said, plain, captured) == (name, [0, 0], [0, 0]), done.stderr
    assert children == [[0, "ended"], [1, "ended"]]
    expected, answer = (torch.load(folder / f"{name}_{kind}.pt") for kind in ("plain", "seen"))
    assert expected.keys() == answer.keys()
    for key, value in expected.items():
        assert torch.equal(answer[key], value) if isinstance(value, torch.Tensor) else answer[key] == value, key
    return list(warnings)


def of_type(dump: Path, rank: int, op_type: str) -> list[Any]:
    return [each for each in opdump.open(dump).executions(rank=rank) if each.op.op_type == op_type]


@needs_rpc
@pytest.mark.timeout(600)
def test_a_function_that_another_process_asks_for_is_captured_where_it_runs(tmp_path: Path) -> None:
    assert run(tmp_path, "asked") == []
    dump, x = tmp_path / "asked", torch.arange(4.0)
    # `far` for worker 0; all three for worker 1 and for itself.
    assert [values(each.inputs) for each in of_type(dump, 1, "sinh")] == [[x.tolist()]]
    assert [values(each.outputs) for each in of_type(dump, 1, "sinh")] == [[x.sinh().tolist()]]
    found = sorted(values(each.inputs)[0] for each in of_type(dump, 0, "sinh"))
    assert found == sorted(each.tolist() for each in (x, x, x.cosh()))
    assert len(of_type(dump, 1, "addmm") + of_type(dump, 1, "mv") + of_type(dump, 1, "addmv")) == 1
    for op_type, count in {"cosh": 1, "atan": 1, "exp2": 1, "hypot": 2, "exp": 1}.items():
        assert len(of_type(dump, 1, op_type)) == count, op_type
        assert of_type(dump, 0, op_type) == [], op_type
    (added,) = (each for each in of_type(dump, 1, "atan"))
    assert values(added.outputs) == [(x.sinh() * 2).atan().tolist()]


@needs_rpc
@pytest.mark.timeout(600)
def test_operators_that_run_without_python_for_another_process_are_reported(tmp_path: Path) -> None:
    warnings = run(tmp_path, "unseen")
    assert len(warnings) == 3, warnings
    for part in (
        "rank_0: torch.distributed.rpc ran operators of PyTorch for this process 2 times in another one",
        "rank_0: torch.distributed.rpc ran functions of TorchScript for this process 1 times",
        "rank_0: torch.distributed.autograd computed gradients 1 times",
    ):
        assert any(warning.startswith(part) for warning in warnings), warnings
    assert of_type(tmp_path / "unseen", 1, "tanh") == []


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
