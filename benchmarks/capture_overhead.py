"""What capture costs a training step: plain, attached but not dumping, and with statistics of all inputs and outputs.

    python benchmarks/capture_overhead.py [--rounds 20]

One process, one torch thread. In each round every variant of a workload runs a few steps, in shuffled order and after the same
warm-up, so that a change of the machine's speed meets all of them. Printed is the median of the rounds' ratios to plain, with
its 95 % confidence interval. Plain is measured twice: `again` shows what the machine's noise is worth.

What a step pays for being attached is far below that noise. So it is also measured by itself, on a network with the same
operators and next to no arithmetic: `attached` is the difference of the fastest steps, for noise only adds, in milliseconds and
as a part of the plain step of full size.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from workloads import WORKLOADS, Step

import opdump
from opdump.kernels import active

WARM_UP = 4
"""The first steps under capture name what they meet, build the graph and fill caches; training has thousands after them."""
TIMED = 5
Variants = dict[str, Callable[[], AbstractContextManager[object]]]


def measure(
    step: Step,
    variants: Variants,
    rounds: int,
    timed: int = TIMED,
    of_block: Callable[[Iterable[float]], float] = statistics.median,
) -> dict[str, list[float]]:
    """Seconds of a step by variant, one value a round: `of_block` of `timed` steps in a row."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in random.sample(list(variants), len(variants)):
            gc.collect()
            with variants[name]():
                for _ in range(WARM_UP):
                    step()
                took = of_block([_seconds(step) for _ in range(timed)])
            if number > 0:  # the first round imports and allocates
                seconds[name].append(took)
    return seconds


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The order statistics that enclose the median with 95 % confidence, whatever the distribution; all for a few values."""
    ordered = sorted(values)
    rank = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[rank], ordered[-1 - rank]


def _seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _cell(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{statistics.median(values):7.3f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=sorted(WORKLOADS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    root = Path(tempfile.mkdtemp(prefix="opdump-overhead-"))

    def dumped() -> AbstractContextManager[object]:
        shutil.rmtree(root / "on", ignore_errors=True)
        return opdump.capture(path=root / "on", saved_data="statistic", iteration="all")

    variants: Variants = {
        "plain": nullcontext,
        "again": nullcontext,
        # Step 1000 never comes: everything is attached, nothing is dumped.
        "not dumped": lambda: opdump.capture(path=root / "off", saved_data="statistic", iteration="1000"),
        "statistics": dumped,
    }
    print(f"kernels: {active()}; torch {torch.__version__}; {arguments.rounds} rounds; ratio to plain (95 % interval)")
    print(f"{'workload':9}{'plain':>10}{'again':>21}{'not dumped':>21}{'statistics':>21}   attached")
    try:
        for name, workload in WORKLOADS.items():
            if arguments.only not in (None, name):
                continue
            seconds = measure(workload.full(), variants, arguments.rounds)
            plain = statistics.median(seconds["plain"])
            cells = [
                _cell([value / base for value, base in zip(seconds[variant], seconds["plain"], strict=True)])
                for variant in ("again", "not dumped", "statistics")
            ]
            small = {variant: variants[variant] for variant in ("plain", "not dumped")}
            bare = measure(workload.small(), small, arguments.rounds, timed=40, of_block=min)
            attached = min(bare["not dumped"]) - min(bare["plain"])
            print(
                f"{name:9}{plain * 1e3:7.1f} ms{''.join(f'{cell:>21}' for cell in cells)}"
                f"   {attached * 1e3:.2f} ms, {attached / plain:.2%}",
                flush=True,
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
