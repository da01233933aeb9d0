"""Kills trainings under capture (SIGKILL) at given points, each in its own process.

    python -m tests.torch.killed_programs ROOT LAYOUT MODE COUNT [POINT ...]

One process imports PyTorch and forks a child for each point. POINT n kills the child after it has renamed the nth file of the dump. The first
child runs to its end, into ROOT/whole; from the number of files that it wrote, COUNT points are drawn with a seed, in addition to the given ones.
Files that are renamed outside of the dump do not count: the last of these is renamed after the dump is closed and complete.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # the first step of an optimizer would import it in each child

import opdump
from opdump.plan import DumpPlan

LAYOUTS: Final[dict[str, dict[str, Any]]] = {
    "sync-2.3": {"layout": "mindspore-2.3", "saved_data": "full"},
    "sync-2.10": {"layout": "mindspore-2.10", "saved_data": "full"},
    "sync-statistic": {"layout": "mindspore-2.3", "saved_data": "statistic"},
    "async": {"layout": "mindspore-async", "file_format": "bin"},
    "async-npy": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
    "acl-statistic": {"layout": "acl", "file_format": "bin", "dialect": "acl", "saved_data": "statistic"},
}
STEPS: Final = 4


def plan_of(root: Path, layout: str, mode: str) -> DumpPlan:
    """The plan for a layout in a mode: data, overflow or exception. Watch mode is an argument of the capture."""
    captures: dict[str, Any] = {} if mode in ("data", "watch") else {"captures": mode, "saved_data": "tensor"}
    return DumpPlan(path=root, **{**LAYOUTS[layout], **captures})


def run(root: Path, layout: str, mode: str) -> None:
    """Train for a few steps under capture; one operator overflows and one fails."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = {"weight": model[0].weight} if mode == "watch" else None
    with opdump.capture(plan_of(root, layout, mode), watch=watched):
        for _ in range(STEPS):
            optimizer.zero_grad()
            (model(torch.ones(4, 6)) * 3e38 * 2).square().mean().backward()
            with suppress(RuntimeError):
                torch.ones(3, 3) @ torch.ones(2, 2)
            optimizer.step()


def _killed_after(root: Path, files: int) -> Callable[..., None]:
    replace, numbers = os.replace, itertools.count(1)

    def counting(source: str, target: str, **kwargs: Any) -> None:
        replace(source, target, **kwargs)
        # A relative name belongs to a directory of the dump that the caller holds open.
        if Path(target).is_absolute() and not Path(target).is_relative_to(root):
            return
        number = next(numbers)
        if number == files:
            os.kill(os.getpid(), signal.SIGKILL)
        counting.number = number  # type: ignore[attr-defined]

    return counting


def main() -> None:
    """Fork a child for each point."""
    torch.set_num_threads(1)
    root, layout, mode, count, *given = sys.argv[1:]
    reading, writing = os.pipe()
    _run_child(Path(root) / "whole", layout, mode, -1, writing)
    files = int(os.read(reading, 20))
    drawn = random.Random(f"{layout} {mode}").sample(range(1, files + 1), min(int(count), files))
    for point in {*map(int, given), *drawn}:
        _run_child(Path(root) / str(point), layout, mode, point, writing)


def _run_child(root: Path, layout: str, mode: str, point: int, writing: int) -> None:
    child = os.fork()
    if child == 0:
        counting = _killed_after(root, point)
        os.replace = counting
        run(root, layout, mode)
        os.write(writing, str(getattr(counting, "number", 0)).encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == (0 if point < 0 else -signal.SIGKILL), (point, code)


if __name__ == "__main__":
    main()
