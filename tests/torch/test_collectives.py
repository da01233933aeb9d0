"""Outputs of collectives are written once they have arrived, on two real ranks, and the answer does not change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from tests.cli.programs import python
from tests.torch.programs import RANKS
from tests.torch.releases import GLOO_SENDS_LISTS_TO_ALL, RELEASE, lists_told

# PyTorch is imported once; then ranks are forked, first without capture, then with it.
PROGRAM = """
import json, os, signal, sys, threading, traceback
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
import opdump

CALLS = {
    "allreduce": "allreduce_", "broadcast": "broadcast_", "allgather": "allgather_", "gather": "gather_", "scatter": "scatter_",
    "_allgather_base": "_allgather_base_", "all_gather_single": "_allgather_base_", "reduce_scatter": "reduce_scatter_",
    "_reduce_scatter_base": "_reduce_scatter_base_", "reduce_scatter_single": "_reduce_scatter_base_",
    "alltoall": "alltoall_", "alltoall_base": "alltoall_base_",
}

def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [tensor for item in value for tensor in flat(item)]

def look_on(seen):
    # Each call waits, and notes what its outputs hold then: what the dump is compared with.
    for name in filter(lambda name: hasattr(dist.ProcessGroup, name), CALLS):
        def noting(group, outputs, *args, call=getattr(dist.ProcessGroup, name), name=name, **kwargs):
            work = call(group, outputs, *args, **kwargs)
            work.wait()
            seen.append((CALLS[name], [tensor.clone() for tensor in flat(outputs)]))
            return work
        setattr(dist.ProcessGroup, name, noting)

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

def trained(model, rank):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.arange(12.0).view(3, 4) + rank + step).square().mean().backward()
        optimizer.step()
    return {
        "parameters": [getattr(one, "_local_tensor", one).detach().clone() for one in model.parameters()],
        "gradients": [getattr(one.grad, "_local_tensor", one.grad).clone() for one in model.parameters()],
    }

def ddp(rank):
    return trained(DistributedDataParallel(network()), rank)

def fsdp1(rank):
    return trained(FullyShardedDataParallel(network(), device_id=torch.device("cpu")), rank)

def fsdp2(rank):
    model = network()
    fully_shard(model[0])
    fully_shard(model[2])
    return trained(fully_shard(model), rank)

def calls(rank):
    x = torch.arange(4.0) + rank
    out = {}
    def keep(name, *tensors): out[name] = [(tensor + 0).clone() for tensor in tensors]
    a = x.clone(); dist.all_reduce(a); keep("all_reduce", a)
    a = x.clone(); dist.all_reduce(a, async_op=True).wait(); keep("async", a)
    a = x.clone(); dist.all_reduce(a, async_op=True).get_future().wait(); keep("get_future", a)
    a = x.clone(); keep("then", dist.all_reduce(a, async_op=True).get_future().then(lambda got: got.value()[0] + 1).wait())
    g = [torch.empty(4) for _ in range(2)]; dist.all_gather(g, x); keep("all_gather", *g)
    o = torch.empty(8); dist.all_gather_into_tensor(o, x); keep("all_gather_into_tensor", o)
    b = x.clone(); dist.broadcast(b, 0); keep("broadcast", b)
    r = torch.empty(2); dist.reduce_scatter_tensor(r, x); keep("reduce_scatter_tensor", r)
    r = torch.empty(2); dist.reduce_scatter(r, list(x.split(2))); keep("reduce_scatter", r)
    t = torch.empty(4); dist.all_to_all_single(t, x); keep("all_to_all_single", t)
    if LISTS_TO_ALL:
        t = [torch.empty(2), torch.empty(2)]; dist.all_to_all(t, list(x.split(2))); keep("all_to_all", *t)
    gl = [torch.empty(4) for _ in range(2)] if rank == 0 else None
    dist.gather(x, gl, 0); keep("gather", *(gl or ()))
    s = torch.empty(4); dist.scatter(s, [x, x + 1] if rank == 0 else None, 0); keep("scatter", s)
    q = torch.empty(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, q, 1 - rank)]): work.wait()
    keep("recv", q)
    if rank == 0: dist.send(x, 1)
    else: dist.recv(q, 0)
    keep("recv again", q)
    dist.barrier()
    group = dist.group.WORLD
    keep("functional all_reduce", funcol.all_reduce(x, "sum", group))
    keep("functional all_gather", funcol.all_gather_tensor(x, 0, group))
    keep("functional reduce_scatter", funcol.reduce_scatter_tensor(x, "sum", 0, group))
    keep("functional all_to_all", funcol.all_to_all_single(x, None, None, group))
    return out

def unwaited(rank):
    x, store = torch.ones(4), dist.distributed_c10d._get_default_store()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(torch.ones(4)).sum().backward()
        if step == 0:
            if rank == 1: store.wait(["the step of rank 0 is over"])
            work = dist.all_reduce(x, async_op=True)
            if rank == 1: work.wait()
        optimizer.step()
    if rank == 0:
        store.set("the step of rank 0 is over", "1")
        work.wait()
    return {"x": [x]}

def failing(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
    raised = []
    work = dist.all_reduce(torch.zeros(1), async_op=True)
    later = dist.all_reduce(torch.zeros(2), async_op=True)
    for call in (work.wait, later.get_future().wait, lambda: dist.all_reduce(torch.zeros(3))):
        try: call()
        except RuntimeError: raised.append(torch.ones(1) + 0)
    return {"raised": raised}

def noted():
    # What a program does after it has waited is no part of the result: each call is noted here by the program, before it goes on.
    notes = []
    def note(op_type, *tensors): notes.append((op_type, [tensor.clone() for tensor in tensors]))
    return notes, note

def hooked(rank):
    notes, note = noted()
    model = DistributedDataParallel(network())
    def hook(state, bucket):
        def halved(future):
            (total,) = future.value()
            note("allreduce_", total)
            half = total.mul_(0.5)
            note("mul_", half)
            return half
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(halved)
    model.register_comm_hook(None, hook)
    return {**trained(model, rank), "notes": notes}

def callbacks(rank):
    notes, note = noted()
    # Nothing arrives before both ranks have called, so one of them has handed its callbacks over by then.
    store, x, over = dist.distributed_c10d._get_default_store(), torch.arange(4.0) + rank, threading.Event()
    def after(future):
        (total,) = future.value()
        note("allreduce_", total)
        return total.sinh_()
    def at_the_end(future):
        note("sinh_", future.value())
        note("cosh", future.value().cosh())
        over.set()
    if rank == 1: store.wait(["the callbacks of rank 0 are there"])
    future = dist.all_reduce(x, async_op=True).get_future().then(after)
    future.add_done_callback(at_the_end)
    if rank == 0: store.set("the callbacks of rank 0 are there", "1")
    over.wait()
    y = torch.ones(4) + rank
    dist.all_reduce(y, async_op=True).get_future().wait()
    note("allreduce_", y)
    y.numpy()[:] = 0  # no operator
    return {"x": [x, y + 1], "notes": notes}

def together(rank):
    notes, note = noted()
    x, group = torch.arange(4.0) + rank, dist.group.WORLD
    first, second = (each.wait() for each in funcol.all_reduce_coalesced([x, x + 1], "sum", group))
    before = first.clone(), second.clone()
    first, second = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
    first = first.wait().mul_(7)
    second = second.wait().mul_(7)
    for _ in range(2): note("all_reduce_coalesced", *before)
    return {"x": [first, second], "notes": notes}

class Strict(torch.overrides.TorchFunctionMode):
    def __init__(self): super().__init__(); self.seen = []
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))

def observed(rank):
    with Strict() as mode:
        x = torch.arange(4.0) + rank
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).get_future().wait()
        dist.all_reduce(x, async_op=True).wait()
    return {"x": [x], "seen": [torch.tensor([ord(letter) for name in mode.seen for letter in name])]}

def regions(rank):
    return {"x": [torch.compile(lambda x: funcol.all_reduce(x.sin(), "sum", dist.group.WORLD) + 1, backend="aot_eager")(torch.ones(4) + rank)]}

def functions(rank):
    x = torch.ones(4) + rank
    dist.all_reduce(x)
    return {"x": [torch.exp(x)]}

ACL = {"dump": {"dump_path": "functions", "dump_list": [], "dump_mode": "all", "dump_op_switch": "on", "dump_level": "op"}}

def capture(name):
    if name != "functions": return opdump.capture(path=name, saved_data="full")
    os.mkdir(name)
    with open("acl.json", "w") as file: json.dump(ACL, file)
    return opdump.capture("acl.json")

def one(name, rank, kind):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store_{name}_{kind}", rank=rank, world_size=2)
    seen = []
    if kind == "plain" and name in ("calls", "ddp", "fsdp1", "fsdp2"): look_on(seen)
    torch.save((globals()[name](rank), seen), f"{name}_{kind}_{rank}.pt")
    dist.destroy_process_group()

@RANKS@
for name in sys.argv[1:]:
    plain = ranks(name, "plain")
    with capture(name) as dump:
        seen = ranks(name, "seen")
    children = [[child.rank_id, child.end, dict(child.tensors_skipped)] for child in dump.report.children]
    print(json.dumps([name, plain, seen, children, dump.report.warnings]))
"""
FILED = {
    "recv": "recv_",
    "functional all_reduce": "all_reduce",
    "functional all_gather": "all_gather_into_tensor",
    "functional reduce_scatter": "reduce_scatter_tensor",
    "functional all_to_all": "all_to_all_single",
}
needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available() or sys.platform == "win32",
    reason="never: PyTorch has no gloo here",
)


def run(folder: Path, *names: str) -> dict[str, list[Any]]:
    """Run these parts of PROGRAM on two ranks, plain and captured, and return what it prints about each."""
    (folder / "ranks.py").write_text(f"LISTS_TO_ALL = {GLOO_SENDS_LISTS_TO_ALL}\n{PROGRAM.replace('@RANKS@', RANKS)}")
    done = python("-W", "ignore", "ranks.py", *names, cwd=folder)
    assert done.returncode == 0, done.stderr
    said = {name: rest for name, *rest in lists_told(done.stdout)}
    assert list(said) == list(names), done.stderr
    return said


def values(execution: Any) -> list[torch.Tensor]:
    assert [tensor.skip for tensor in execution.outputs.values()] == [""] * len(execution.outputs), execution.op
    return [torch.from_numpy(tensor.payload.to_host().copy()) for tensor in execution.outputs.values()]


def are_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(torch.equal(one.flatten(), other.flatten()) for one, other in pairs)


@needs_gloo
@pytest.mark.timeout(900)  # several processes, possibly on a busy machine
def test_collectives_are_filed_when_they_are_complete_and_change_nothing(tmp_path: Path) -> None:
    names = (
        ("ddp", "fsdp1") if RELEASE < (2, 7) else ("calls", "ddp", "fsdp1", "fsdp2")
    )  # the others fail in these releases, also without capture
    for name, (plain, captured, children, warnings) in run(tmp_path, *names).items():
        assert (plain, captured, warnings) == ([0, 0], [0, 0], [])
        assert [child[:2] for child in children] == [[0, "ended"], [1, "ended"]], name
        catalog = opdump.open(tmp_path / name)
        for rank in (0, 1):
            expected, noted = torch.load(tmp_path / f"{name}_plain_{rank}.pt")
            answer, _ = torch.load(tmp_path / f"{name}_seen_{rank}.pt")
            assert expected.keys() == answer.keys()
            assert all(are_equal(*pair) for pair in zip(answer.values(), expected.values(), strict=True)), name
            executions = list(catalog.executions(rank=rank, include_skipped=True))
            assert not [t for each in executions for t in each.outputs.values() if t.skip in ("in flight", "failed")]
            kinds = {kind for kind, _ in noted}
            assert len(kinds) == {"calls": 9, "ddp": 0, "fsdp1": 2, "fsdp2": 2}[name], kinds
            for kind in kinds:
                filed = [values(each) for each in executions if each.op.op_type == kind]
                wanted = [tensors for found, tensors in noted if found == kind]
                assert len(filed) == len(wanted), (name, kind)
                for pair in zip(filed, wanted, strict=True):
                    assert are_equal(*pair), (name, kind)
            for call, op_type in FILED.items() if name == "calls" else ():
                first = next(each for each in executions if each.op.op_type == op_type)
                assert are_equal(values(first), expected[call]), call
            if name == "ddp":
                buckets = [values(each) for each in executions if each.op.op_type == "allreduce_"]
                assert len(buckets) == 2, "one of each step"
                gradients = torch.cat([tensor.flatten() for tensor in expected["gradients"]])
                assert torch.equal(buckets[-1][0].flatten().sort().values, gradients.sort().values)


@needs_gloo
@pytest.mark.timeout(900)
def test_a_result_is_filed_as_it_arrived_whatever_thread_goes_on_with_it(tmp_path: Path) -> None:
    names = ("hooked", "callbacks", "together", "observed")
    for name, (plain, captured, children, warnings) in run(tmp_path, *names).items():
        assert (plain, captured, warnings) == ([0, 0], [0, 0], [])
        assert [child[:2] for child in children] == [[0, "ended"], [1, "ended"]], name
        catalog = opdump.open(tmp_path / name)
        for rank in (0, 1):
            expected, _ = torch.load(tmp_path / f"{name}_plain_{rank}.pt")
            answer, _ = torch.load(tmp_path / f"{name}_seen_{rank}.pt")
            notes, again = expected.pop("notes", []), answer.pop("notes", [])
            assert [kind for kind, _ in notes] == [kind for kind, _ in again]
            assert all(are_equal(*pair) for pair in zip(answer.values(), expected.values(), strict=True)), name
            executions = list(catalog.executions(rank=rank, include_skipped=True))
            for kind in {kind for kind, _ in notes}:
                filed = [values(each) for each in executions if each.op.op_type == kind]
                wanted = [tensors for found, tensors in notes if found == kind]
                if kind != "mul_":
                    assert len(filed) == len(wanted), (name, kind)
                for tensors in wanted:
                    assert any(are_equal(found, tensors) for found in filed), (name, rank, kind)


@needs_gloo
@pytest.mark.timeout(900)
def test_a_rank_is_known_where_no_mode_sees_its_collectives(tmp_path: Path) -> None:
    """In compiled regions, and when functions are dumped instead of their operators."""
    for name, (plain, captured, children, warnings) in run(tmp_path, "regions", "functions").items():
        assert (plain, captured, warnings) == ([0, 0], [0, 0], [])
        assert [child[:2] for child in children] == [[0, "ended"], [1, "ended"]], name
        for rank in (0, 1):
            (expected, _), (answer, _) = (
                torch.load(tmp_path / f"{name}_{kind}_{rank}.pt") for kind in ("plain", "seen")
            )
            assert are_equal(answer["x"], expected["x"])


@needs_gloo
@pytest.mark.timeout(900)
def test_what_has_not_arrived_or_has_failed_is_reported_and_never_filed_as_a_result(tmp_path: Path) -> None:
    said = run(tmp_path, "unwaited", "failing")
    plain, captured, children, warnings = said["unwaited"]
    assert (plain, captured, warnings) == ([0, 0], [0, 0], [])
    assert [child[2].get("in flight") for child in children] == [1, None]
    catalog = opdump.open(tmp_path / "unwaited")
    for rank, reasons in enumerate([["in flight"], [""]]):
        (call,) = [
            each for each in catalog.executions(rank=rank, include_skipped=True) if each.op.op_type == "allreduce_"
        ]
        assert [tensor.skip for tensor in call.outputs.values()] == reasons
        expected, answer = (torch.load(tmp_path / f"unwaited_{kind}_{rank}.pt")[0]["x"] for kind in ("plain", "seen"))
        assert torch.equal(*expected, *answer)

    plain, captured, children, warnings = said["failing"]
    assert plain == captured == [0, 9]
    assert {child[1] for child in children} == {"ended", "lost"}
    assert any("ended without a report" in warning for warning in warnings)
    raised = [len(torch.load(tmp_path / f"failing_{kind}_0.pt")[0]["raised"]) for kind in ("plain", "seen")]
    assert raised == [3, 3]
    calls = [
        each
        for each in opdump.open(tmp_path / "failing").executions(rank=0, include_skipped=True)
        if each.op.op_type == "allreduce_"
    ]
    assert [tensor.skip for each in calls for tensor in each.outputs.values()] == ["", "failed", "failed", "failed"]
