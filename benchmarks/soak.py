"""Whether a long run is stable: memory, descriptors, threads and the time of a step over many steps.

    python benchmarks/soak.py [--steps 20000] [--kind statistics|ring]

Trains a network of 20 layers of 32 with statistics of everything in every step, then with the last three steps in memory (`ring`), of which
nothing is written. Prints a row for each tenth of the steps, and after the last row the memory that the second half added. 20,000 steps take
twenty minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

import opdump

KINDS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"statistics": {}, "ring": {"ring": 3}})
ROWS: Final = 10
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def resident() -> float:
    """Resident memory of this process in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def run(kind: str, steps: int, folder: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(32, 32), nn.Tanh())))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    x, y = torch.randn(8, 32), torch.randn(8, 32)
    print(f"{kind}: {steps} steps\n{'step':>8} {'MB':>8} {'descriptors':>12} {'threads':>8} {'ms/step':>10}")
    memory = []
    with opdump.capture(path=folder / kind, saved_data="statistic", **KINDS[kind]):
        for row in range(ROWS):
            took = []
            for _ in range(steps // ROWS):
                begin = time.perf_counter()
                optimizer.zero_grad()
                ((net(x) - y) ** 2).mean().backward()
                optimizer.step()
                took.append(time.perf_counter() - begin)
            memory.append(resident())
            # Python does not count the threads of the compiled core.
            threads = max(threading.active_count(), len(os.listdir("/proc/self/task")))
            print(
                f"{(row + 1) * steps // ROWS:8} {memory[-1]:8.1f} {len(os.listdir('/proc/self/fd')):12} {threads:8} "
                f"{statistics.median(took) * 1e3:10.2f}",
                flush=True,
            )
    print(f"{kind}: the second half added {memory[-1] - memory[ROWS // 2 - 1]:.1f} MB\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--kind", choices=sorted(KINDS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="opdump-soak-"))
    try:
        for kind in KINDS if arguments.kind is None else [arguments.kind]:
            run(kind, arguments.steps, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
