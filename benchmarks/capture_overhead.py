"""What capture costs a training step: plain, attached but not dumping, and with statistics of all inputs and outputs.

    python benchmarks/capture_overhead.py [--rounds 20]

One process, one torch thread. The variants of a workload run in turn within each round, in shuffled order, so that a change
of the machine's speed meets all of them; the ratio is taken round by round and its median printed. Plain is measured twice:
the second column shows the noise.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from workloads import WORKLOADS

import opdump
from opdump.kernels import active

WARM_UP = 5
"""The first steps under capture name what they meet, build the graph and fill caches; training has thousands after them."""
TIMED = 3


def timed(step: Callable[[], None]) -> float:
    """Seconds of a step, the median of a few in a row."""
    seconds = []
    for _ in range(TIMED):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def measure(make: Callable[[], Callable[[], None]], rounds: int, root: Path) -> dict[str, list[float]]:
    """Seconds of a step by variant, one value a round."""
    step = make()

    def off() -> float:
        # Step 1000 never comes: everything is attached, nothing is dumped.
        with opdump.capture(path=root / "off", saved_data="statistic", iteration="1000"):
            for _ in range(WARM_UP):
                step()
            return timed(step)

    def on() -> float:
        with opdump.capture(path=root / "on", saved_data="statistic", iteration="all"):
            for _ in range(WARM_UP):
                step()
            return timed(step)

    variants: dict[str, Callable[[], float]] = {
        "plain": lambda: timed(step),
        "plain again": lambda: timed(step),
        "not dumped": off,
        "statistics": on,
    }
    for variant in variants.values():
        variant()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        order = list(variants)
        random.shuffle(order)
        for name in order:
            step()
            gc.collect()
            seconds[name].append(variants[name]())
        shutil.rmtree(root, ignore_errors=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=sorted(WORKLOADS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"kernels: {active()}; torch {torch.__version__}; {arguments.rounds} rounds; ratio = variant / plain, median")
    print(f"{'workload':10}{'plain':>10}{'again':>8}{'not dumped':>12}{'statistics':>12}")
    for name, make in WORKLOADS.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            seconds = measure(make, arguments.rounds, Path(folder))
        plain = seconds["plain"]
        ratios = [
            statistics.median(value / base for value, base in zip(seconds[variant], plain, strict=True))
            for variant in ("plain again", "not dumped", "statistics")
        ]
        print(
            f"{name:10}{statistics.median(plain) * 1e3:7.1f} ms{ratios[0]:8.3f}{ratios[1]:12.3f}{ratios[2]:12.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
