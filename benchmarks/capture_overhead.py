"""The cost of a capture per training step: plain, attached but not recording, and with statistics of all inputs and outputs.

    python benchmarks/capture_overhead.py [--rounds 20] [--pairs 1000]

One process, one torch thread; half an hour. The variants run interleaved, in shuffled order and after the same warm-up, so that a
change of the machine's speed affects both sides. The output is the ratio to plain with its 95 % confidence interval.

`statistics` and `again` are medians of `--rounds`. `again` is plain a second time, and shows the machine's noise.

`not dumped` must distinguish 1.01 from 1.00 on machines whose steps vary by 10 %. It is therefore the geometric mean of the ratios of
many pairs of short blocks, one plain and one attached, in CPU seconds of the process, because nothing waits for a disk in these steps
and wall-clock time would add the noise of other programs. It continues until the 95 % interval is 1 % to each side, whatever its
middle is, or until `--pairs`.

`attached` is the same cost in milliseconds, measured on a network with the same operators and almost no arithmetic: the difference of
the fastest steps (noise only adds), and its share of a plain step of full size.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from intervals import interval
from memory import keep_freed_memory
from rich.progress import Progress
from workloads import WORKLOADS, Step, Workload

import opdump
from opdump.kernels import active

WARM_UP = 6
"""The first steps under capture name operators, build the graph, fill caches and are learned. Training has thousands of steps after them."""
TIMED = 5
PAIR_WARM_UP = 1
"""The first step after attaching visits the module tree. Without recording, the second is like the thousandth."""
PAIR_TIMED = 3
HALF_WIDTH = 0.01
Variants = dict[str, Callable[[], AbstractContextManager[object]]]


def measure(
    step: Step,
    variants: Variants,
    rounds: int,
    timed: int = TIMED,
    of_block: Callable[[Iterable[float]], float] = statistics.median,
) -> dict[str, list[float]]:
    """Seconds per step by variant, one value per round: `of_block` over `timed` consecutive steps."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in random.sample(list(variants), len(variants)):
            gc.collect()
            with variants[name]():
                # From one line: a step called from another line is a different step.
                took = of_block([_seconds(step) for _ in range(WARM_UP + timed)][WARM_UP:])
            if number > 0:  # the first round imports and allocates
                seconds[name].append(took)
    return seconds


class Pair(NamedTuple):
    """CPU seconds per step in two adjacent blocks, one plain and one under the variant."""

    plain: float
    variant: float

    @property
    def ratio(self) -> float:
        return self.variant / self.plain


def paired_ratios(step: Step, variant: Callable[[], AbstractContextManager[object]], most: int) -> list[Pair]:
    """CPU seconds per step, plain and under the variant, from adjacent blocks of `PAIR_TIMED` steps.

    Stops, after at least 50 pairs, as soon as `geometric_mean` is known to `HALF_WIDTH`, or after `most`.
    """
    sides: tuple[Callable[[], AbstractContextManager[object]], ...] = (nullcontext, variant)
    pairs: list[Pair] = []
    with Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("not dumped", total=most)
        while len(pairs) < most:
            seconds = [0.0, 0.0]
            for side in random.sample((0, 1), 2):
                gc.collect()
                with sides[side]():
                    for _ in range(PAIR_WARM_UP):
                        step()
                    begin = time.process_time()
                    for _ in range(PAIR_TIMED):
                        step()
                    seconds[side] = (time.process_time() - begin) / PAIR_TIMED
            pairs.append(Pair(*seconds))
            progress.advance(task)
            if len(pairs) >= 50:
                mean, low, high = geometric_mean([pair.ratio for pair in pairs])
                if max(mean - low, high - mean) <= HALF_WIDTH:
                    break
    return pairs


def geometric_mean(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean and the bounds of its 95 % confidence interval, from the standard error of the logarithms."""
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logarithms)
    error = 1.96 * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return math.exp(mean), math.exp(mean - error), math.exp(mean + error)


def _seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _cell(middle: float, low: float, high: float) -> str:
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def print_statistics(chosen: Mapping[str, Workload], variants: Variants, rounds: int) -> None:
    print(f"{'workload':9}{'plain':>10}{'again':>22}{'statistics':>22}   {rounds} rounds")
    for name, workload in chosen.items():
        seconds = measure(workload.full(), variants, rounds)
        cells = []
        for variant in ("again", "statistics"):
            ratios = [value / base for value, base in zip(seconds[variant], seconds["plain"], strict=True)]
            cells.append(_cell(statistics.median(ratios), *interval(ratios)))
        plain = statistics.median(seconds["plain"])
        print(f"{name:9}{plain * 1e3:7.1f} ms{''.join(f'{cell:>22}' for cell in cells)}", flush=True)


def print_not_dumped(
    chosen: Mapping[str, Workload], not_dumped: Callable[[], AbstractContextManager[object]], rounds: int, most: int
) -> None:
    print(f"{'workload':9}{'not dumped':>22}   attached")
    for name, workload in chosen.items():
        small: Variants = {"plain": nullcontext, "not dumped": not_dumped}
        bare = measure(workload.small(), small, rounds, timed=40, of_block=min)
        attached = min(bare["not dumped"]) - min(bare["plain"])
        pairs = paired_ratios(workload.full(), not_dumped, most)
        plain = statistics.median(pair.plain for pair in pairs)
        print(
            f"{name:9}{_cell(*geometric_mean([pair.ratio for pair in pairs])):>22}   {attached * 1e3:.2f} ms, "
            f"{attached / plain:.2%}   {len(pairs)} pairs",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--part", choices=["statistics", "not-dumped"], help="print only one of the two tables")
    parser.add_argument("--only", choices=sorted(WORKLOADS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    logging.getLogger("opdump").setLevel(logging.ERROR)  # the warning that nothing was captured is expected
    root = Path(tempfile.mkdtemp(prefix="opdump-overhead-"))

    def dumped() -> AbstractContextManager[object]:
        shutil.rmtree(root / "on", ignore_errors=True)
        return opdump.capture(path=root / "on", saved_data="statistic", iteration="all")

    def not_dumped() -> AbstractContextManager[object]:
        # Step 1000 is never reached: everything is attached and nothing is recorded.
        return opdump.capture(path=root / "off", saved_data="statistic", iteration="1000")

    chosen = {name: workload for name, workload in WORKLOADS.items() if arguments.only in (None, name)}
    print(f"kernels: {active()}; torch {torch.__version__}; ratios to plain with their 95 % intervals")
    try:
        if arguments.part != "not-dumped":
            print_statistics(
                chosen, {"plain": nullcontext, "again": nullcontext, "statistics": dumped}, arguments.rounds
            )
        if arguments.part != "statistics":
            print_not_dumped(chosen, not_dumped, arguments.rounds, arguments.pairs)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
