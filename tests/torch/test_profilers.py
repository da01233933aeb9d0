"""Profilers, debuggers and tracers see the same modules of the program with and without capture, and the answers stay the same."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.amp import GradScaler

import opdump

PROGRAM = """
import cProfile, faulthandler, importlib, io, os, pstats, sys, threading
import torch
from contextlib import suppress
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

with suppress(ImportError):  # its names are read after they were freed, if it is imported under the profiler
    importlib.import_module("torch.profiler._cupti_monitor")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.rest(checkpoint(self.first, x, use_reentrant=False))

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def train(each=lambda: None):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(3, 4)
    for _ in range(2):
        optimizer.zero_grad()
        loss = Double.apply(net(x)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        each()
    with torch.inference_mode():
        return net(x).sum().item().hex()

def profiled(**options):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, **options) as found:
        answer = train(found.step)
    found.export_chrome_trace("trace.json")
    return answer, sorted({event.name for event in found.events() if event.name.startswith("nn.Module")})

def in_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(train()))
    thread.start()
    thread.join()
    return found

print("profiler", *profiled(with_modules=True, record_shapes=True, profile_memory=True))
print("schedule", *profiled(schedule=schedule(wait=0, warmup=1, active=1)))
config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
with profile(activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=config):
    print("threads", in_thread())

cprofile = cProfile.Profile()
answer = cprofile.runcall(train)
names = {name for _, _, name in pstats.Stats(cprofile, stream=io.StringIO()).stats}
print("cProfile", answer, nn.Module.__call__.__code__.co_name in names)

seen = set()
def watch(frame, event, arg):
    if event == "call" and frame.f_code is nn.Module.__call__.__code__:
        seen.add(type(frame.f_locals["self"]).__name__)
    return watch

sys.setprofile(watch)
answer = train()
sys.setprofile(None)
print("setprofile", answer, sorted(seen))

seen.clear()
sys.settrace(watch)
threading.settrace(watch)
answer = in_thread()
sys.settrace(None)
threading.settrace(None)
print("settrace", answer, sorted(seen))

with open(os.devnull, "w") as nowhere:
    faulthandler.dump_traceback_later(0.01, repeat=True, file=nowhere)
    print("faulthandler", train())
    faulthandler.cancel_dump_traceback_later()

if hasattr(sys, "monitoring"):
    names.clear()
    monitoring = sys.monitoring
    monitoring.use_tool_id(3, "test")
    monitoring.register_callback(3, monitoring.events.PY_START, lambda code, _: names.add(code.co_qualname))
    monitoring.set_events(3, monitoring.events.PY_START)
    answer = train()
    monitoring.set_events(3, 0)
    print("monitoring", answer, nn.Module.__call__.__qualname__ in names)
"""


def test_a_training_under_profilers_and_tracers_prints_what_it_prints_without_capture(tmp_path: Path) -> None:
    file = tmp_path / "observed.py"
    file.write_text(PROGRAM, encoding="utf-8")
    ways = {
        "plain": [],
        "captured": ["-m", "opdump", "run", "--path", str(tmp_path / "dump")],
    }
    printed = {}
    for way, words in ways.items():
        run = subprocess.run(
            [sys.executable, *words, str(file)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert run.returncode == 0, run.stderr
        printed[way] = run.stdout.splitlines()
    assert printed["captured"] == printed["plain"]
    assert "nn.Module: Net_0" in printed["plain"][0]


FUNCTIONS: list[tuple[Any, str]] = [
    (nn.Module, "__call__"),
    (torch.autograd.Function, "apply"),
    (torch.autograd.function.BackwardCFunction, "apply"),
    (torch.utils.checkpoint.CheckpointFunction, "apply"),
    (torch.inference_mode, "__exit__"),
    (torch.Future, "wait"),
    (torch.Future, "then"),
    (GradScaler, "update"),
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
]


def _look(owner: Any, name: str) -> tuple[Any, ...]:
    found = inspect.getattr_static(owner, name)
    function = getattr(found, "__func__", found)
    code = getattr(function, "__code__", None)
    in_python = None if code is None else (code.co_name, code.co_varnames[:1])
    return type(found), function.__name__, function.__qualname__, function.__module__, function.__doc__, in_python


@pytest.mark.parametrize(("owner", "name"), FUNCTIONS, ids=lambda each: getattr(each, "__name__", each))
def test_a_function_that_a_capture_replaces_looks_like_the_original(owner: Any, name: str, tmp_path: Path) -> None:
    before, original = _look(owner, name), inspect.getattr_static(owner, name)
    with opdump.capture(path=tmp_path, on_exception=True):
        replaced = inspect.getattr_static(owner, name)
        assert replaced is not original
        during = _look(owner, name)
    assert during[1:5] == before[1:5]
    if before[5] is not None:  # a function written in C has no code
        assert during[5] == before[5]
