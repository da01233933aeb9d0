"""The time of reading a large dump: `python benchmarks/read_scale.py [--steps 1000] [--kind statistics] [--dump DIR] [--rounds 3]`.

Trains a small network (30 times a linear layer of 32, tanh, a scale and a residual, batch 8) with statistics of every tensor in every step;
1,000 steps have 1.3 million tensors. `--kind digests` adds MD5, `--kind packed` adds the values in one file. `--dump` keeps the dump in that
directory, or uses an existing one. Each command is a separate process. The output is the median of the CPU seconds over the rounds, wall-clock
seconds, and the peak memory of a process.

Goals for 1,000 steps of statistics: check 3 s, show and show --op 0.5 s, 500 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

OPERATOR: Final = "mse_loss"
MISSPELLED: Final = "mse_los-op0"
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "statistics": {"saved_data": "statistic"},
    "digests": {"saved_data": "statistic", "statistic_category": ["max", "min", "l2norm", "md5"]},
    "packed": {"saved_data": "full", "layout": "packed"},
}


class Cost(NamedTuple):
    """The cost of one process."""

    processor: float
    wall: float
    megabytes: float


def record(path: Path, steps: int, kind: str) -> None:
    """Make the dump. Only this imports PyTorch: the measured commands share no memory with it."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    import opdump

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = x + 0.1 * torch.tanh(self.linear(x))
            return result

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(*(Block() for _ in range(30)))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    x, y = torch.randn(8, 32), torch.randn(8, 32)
    with opdump.capture(path=path, **KINDS[kind]):
        for _ in range(steps):
            optimizer.zero_grad()
            functional.mse_loss(net(x), y).backward()
            optimizer.step()


def cost_of(arguments: Sequence[str], code: int = 0) -> Cost:
    """The cost of one run of `opdump`, which must end with this exit code."""
    begin = time.perf_counter()
    errors = subprocess.DEVNULL if code else None
    process = subprocess.Popen([sys.executable, "-m", "opdump", *arguments], stdout=subprocess.DEVNULL, stderr=errors)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    if process.returncode != code:
        raise SystemExit(f"opdump {' '.join(arguments)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1e3)


def measure(dump: Path, folder: Path, rounds: int) -> None:
    """Print a row per command."""
    commands = {
        "start (--help)": ["--help"],
        "check": ["check", str(dump)],
        "show": ["show", str(dump)],
        "show --op": ["show", str(dump), "--op", OPERATOR],
        "no such name": ["show", str(dump), "--op", MISSPELLED],
        "export": ["export", str(dump), "--overwrite", "-o", str(folder / "dump.parquet")],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            costs[name].append(cost_of(arguments, code=1 if MISSPELLED in arguments else 0))
    print(f"{'':16}{'processor':>12}{'wall clock':>12}{'memory':>10}")
    for name, found in costs.items():
        processor, wall = (statistics.median(values) for values in ([each[at] for each in found] for at in (0, 1)))
        print(f"{name:16}{processor:10.2f} s{wall:10.2f} s{max(each.megabytes for each in found):7.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kind", choices=KINDS, default="statistics", help="what is recorded")
    parser.add_argument("--dump", type=Path, help="keep the dump in this directory, or use the one that exists")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record is not None:
        record(options.record, options.steps, options.kind)
        return
    with tempfile.TemporaryDirectory(prefix="opdump-read-") as name:
        folder = Path(name)
        dump = options.dump or folder / "dump"
        if not dump.exists():
            steps = ["--steps", str(options.steps), "--kind", options.kind]
            subprocess.run([sys.executable, __file__, "--record", str(dump), *steps], check=True)
        measure(dump, folder, options.rounds)


if __name__ == "__main__":
    main()
