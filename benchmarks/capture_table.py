"""The cost of each kind of dump per training step of PyTorch, from large operators to tiny ones.

    python benchmarks/capture_table.py [--rounds 8] [--only MLP]

One process, one torch thread; ten minutes. The output is the ratio to the plain step in CPU seconds of the process (wall-clock time
would include waiting for the disk): the median of the rounds, with its 95 % interval. Every round runs all kinds, in shuffled order.
`empty mode` is a PyTorch dispatch mode that records nothing: the lower bound for a tool that receives operators in Python.
`not followed`, `md5 not followed` and `packed not followed` are `statistics`, `+ md5` and `packed` with the fast path for repeated
steps turned off (OPDUMP_FOLLOW=0). `tensors` and `packed` are values and statistics, with a file per tensor and with one file for all
(`layout="packed"`); the files are deleted.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from intervals import interval
from memory import keep_freed_memory
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import STEPS, Step

import opdump
from opdump.kernels import active

_ALL: Final = ("max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count", "negative inf count",
               "positive inf count", "zero count", "l2norm")  # fmt: skip
_KINDS: Final[Mapping[str, dict[str, Any] | None]] = {
    "plain": None,
    "again": None,
    "empty mode": None,
    "not dumped": {"saved_data": "statistic", "iteration": "1000"},
    "statistics": {"saved_data": "statistic", "statistic_category": _ALL},
    "not followed": {"saved_data": "statistic", "statistic_category": _ALL},
    "+ md5": {"saved_data": "statistic", "statistic_category": (*_ALL, "md5")},
    "md5 not followed": {"saved_data": "statistic", "statistic_category": (*_ALL, "md5")},
    "tensors": {"saved_data": "full", "statistic_category": _ALL},
    "packed not followed": {"saved_data": "full", "statistic_category": _ALL, "layout": "packed"},
    "packed": {"saved_data": "full", "statistic_category": _ALL, "layout": "packed"},
}
WARM_UP = 6
"""The first steps name operators, fill caches and are learned."""
_SHORT: Final = 0.2
"""The minimum time of the plain steps of a round, in seconds."""


class _EmptyMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=list(STEPS), action="append")
    parser.add_argument("--kind", choices=list(_KINDS)[1:], action="append", help="kinds besides plain (default: all)")
    arguments = parser.parse_args()
    kinds = ["plain", *(arguments.kind or list(_KINDS)[1:])]
    torch.set_num_threads(1)
    keep_freed_memory()
    logging.getLogger("opdump").setLevel(logging.ERROR)  # the warning that nothing was captured is expected
    print(f"kernels: {active()}; torch {torch.__version__}; CPU seconds, ratios to plain with their 95 % intervals")
    print(f"{'workload':13}{'plain':>10}" + "".join(f"{kind:>20}" for kind in kinds[1:]))
    for name in arguments.only or STEPS:
        seconds = _measured(STEPS[name](), arguments.rounds, kinds)
        plain = statistics.median(seconds["plain"])
        cells = []
        for kind in kinds[1:]:
            ratios = [value / base for value, base in zip(seconds[kind], seconds["plain"], strict=True)]
            low, high = interval(ratios)
            cells.append(f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})")
        print(f"{name:13}{plain * 1e3:7.2f} ms" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def _measured(step: Step, rounds: int, kinds: Sequence[str]) -> dict[str, list[float]]:
    """CPU seconds per step by kind, one value per round."""
    for _ in range(WARM_UP):
        step()
    timed = max(3, int(_SHORT / max(seconds_of(step, 3), 1e-9)))
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind in random.sample(kinds, len(kinds)):
            gc.collect()
            with under(kind):
                # From one line: a step called from another line is a different step.
                for count in (WARM_UP, 3 if kind.startswith(("tensors", "packed")) else timed):
                    took = seconds_of(step, count)
            if number > 0:  # the first round imports and allocates
                seconds[kind].append(took)
    return seconds


@contextmanager
def under(kind: str) -> Iterator[None]:
    """Run the block under a capture of that kind, and delete its files."""
    if kind == "empty mode":
        with _EmptyMode():  # type: ignore[no-untyped-call]  # PyTorch's
            yield
        return
    options = _KINDS[kind]
    root = Path(tempfile.mkdtemp(prefix="opdump-table-"))
    os.environ["OPDUMP_FOLLOW"] = "0" if kind.endswith("not followed") else ""
    try:
        with nullcontext() if options is None else opdump.capture(path=root, **{"iteration": "all", **options}):
            yield
    finally:
        shutil.rmtree(root, ignore_errors=True)


def seconds_of(step: Step, count: int) -> float:
    """CPU seconds of the process per step."""
    begun = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - begun) / count


if __name__ == "__main__":
    main()
