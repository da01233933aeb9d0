"""Functions that `torch.distributed.rpc` runs for another process are captured where they run, and the others are reported: two real workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from tests.cli.programs import python
from tests.torch.releases import lists_told

PROGRAM = """
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

def workers(name, kind):
    for rank in (1, 0):
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
    plain = workers(name, "plain")
    with opdump.capture(path=name, saved_data="full") as dump:
        seen = workers(name, "seen")
    children = sorted([child.rank_id, child.end] for child in dump.report.children)
    print(json.dumps([name, plain, seen, children, dump.report.warnings]))
"""
needs_rpc = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.rpc.is_available() or sys.platform == "win32",
    reason="never: PyTorch has no RPC here",
)


def run(folder: Path, name: str) -> list[str]:
    """Run this part of PROGRAM in two workers, plain and captured, and return the warnings of the report."""
    (folder / "workers.py").write_text(PROGRAM)
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


def values(tensors: Any) -> list[list[float]]:
    return [tensor.payload.to_host().tolist() for tensor in tensors.values()]


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
