"""The cost per training step of the modes that write few operators, in steps in which nothing is written.

    python benchmarks/modes_overhead.py [--mode overflow|exception] [--rounds 5] [--size full|small]

One process, one torch thread. Steps without capture and steps under the mode alternate in blocks. The output is the median of the ratios
of adjacent blocks.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path

import torch
from memory import keep_freed_memory
from workloads import WORKLOADS, Step

import opdump

WARM_UP = 3
TIMED = 3


def block(step: Step) -> float:
    """Seconds per step, after the warm-up."""
    took = []
    for _ in range(WARM_UP + TIMED):  # from one line: a step called from another line is a different step
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[WARM_UP:])


def under(mode: str, step: Step) -> float:
    """Seconds per step under the mode."""
    with (
        tempfile.TemporaryDirectory(prefix="opdump-modes-") as folder,
        opdump.capture(path=Path(folder) / "dump", overflow=mode == "overflow", on_exception=mode == "exception"),
    ):
        return block(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("overflow", "exception"), default="overflow")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for name, workload in WORKLOADS.items():
        step = (workload.full if arguments.size == "full" else workload.small)()
        plain, ratios = [], []
        for _ in range(arguments.rounds):
            gc.collect()
            plain.append(block(step))
            ratios.append(under(arguments.mode, step) / plain[-1])
        low, high = min(ratios), max(ratios)
        print(
            f"{name:8}{arguments.size:6} plain {statistics.median(plain) * 1e3:7.1f} ms   "
            f"{arguments.mode} {statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
