"""The cost of writing the records of a step: `python benchmarks/end_step.py`.

800 operators and 2000 tensors per step, statistics only: statistic.csv, execution history and one transaction of the index. Prints
milliseconds of the first step (which stores every name) and of the following ones, and the time of printing the numbers of statistic.csv,
compiled and in Python, alternately. Then the bytes of a PyTorch recursion, of the same operators in a loop, and of the recursion if files
and index contained all lines of each operator's stack, as they once did.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opdump.call_stacks import shortened
from opdump.index.writer import RunFacts
from opdump.kernels import Summary, TableText, append_file
from opdump.layouts.graph_files.mindspore.spelling import format_frame
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import Frame, OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics

OPERATORS, TENSORS, STEPS = 800, 2000, 30
# One object: adapters reuse it while the arguments are the same.
ARGUMENTS = {"stride": [1, 1], "padding": [0, 0], "groups": 1}


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="opdump-end-step-"))
    try:
        plan = DumpPlan(path=root, saved_data="statistic")
        writer = SyncWriter(plan, RunFacts(0, "CPU", "none", "0", "0", ("benchmark",), plan.to_json()))
        stacks = [
            (Frame("train.py", line, "step", "loss = model(x)"), Frame("main.py", 3, "main", "run()"))
            for line in range(80)
        ]
        times = []
        for step in range(STEPS):
            records = step_records(step, stacks)
            begin = time.perf_counter()
            writer.write_step(*records)
            times.append(1e3 * (time.perf_counter() - begin))
        writer.close({"executed": OPERATORS * STEPS})
    finally:
        shutil.rmtree(root)
    rest = times[1:]
    print(f"first step {times[0]:.1f} ms; then median {statistics.median(rest):.1f} ms, best {min(rest):.1f} ms")
    print_numbers()
    print_recursion()


def print_recursion(levels: int = 900) -> None:
    """Four floats, one operator per level, statistics, the layout with graph files."""
    import torch

    import opdump

    def descend(x: torch.Tensor, left: int) -> torch.Tensor:
        return descend(x + 1, left - 1) if left else x

    def loop(x: torch.Tensor, left: int) -> torch.Tensor:
        for _ in range(left):
            x = x + 1
        return x

    root = Path(tempfile.mkdtemp(prefix="opdump-recursion-"))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + levels)
    try:
        sizes, seconds = {}, {}
        for program in (loop, descend):
            path = root / program.__name__
            began = time.perf_counter()
            with opdump.capture(path=path, saved_data="statistic", statistic_category=["max", "min", "l2norm"]):
                program(torch.zeros(4), levels)
            seconds[path.name] = time.perf_counter() - began
            sizes[path.name] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        began = time.perf_counter()
        stacks = [each.op.stack for each in opdump.open(root / "descend").ops()]
        read = time.perf_counter() - began
        missing = sum(
            len(format_frame(frame, "colon")) for stack in stacks for frame in stack[8:-4] if shortened(stack).left_out
        )
        whole = sizes["descend"] + 3 * missing  # the index, .ir and .pb
    finally:
        sys.setrecursionlimit(limit)
        shutil.rmtree(root)
    print(
        f"{levels} levels of x + 1: {sizes['descend'] / 1e6:.2f} MB, {sizes['descend'] / sizes['loop']:.2f} times the {sizes['loop'] / 1e6:.2f} MB"
        f" of a loop (before, all lines of each stack: {whole / 1e6:.0f} MB, {whole / sizes['loop']:.0f} times);"
        f" captured in {seconds['descend']:.2f} s (loop {seconds['loop']:.2f} s), all operators read in {read:.2f} s"
    )


def print_numbers() -> None:
    """Print four numbers of six digits and seven counts per tensor."""
    random = np.random.default_rng(0)
    columns = [random.standard_normal(TENSORS) for _ in range(4)]
    columns += [random.integers(0, 2048, TENSORS).astype(np.float64) for _ in range(7)]
    template = ("input,0,4096,float32,(32,32)" + ",%g" * 4 + ",%d" * 7 + "\n") * TENSORS
    kinds = [TableText(template), append_file.TableText(template)]
    seconds: list[list[float]] = [[], []]
    for _ in range(STEPS):
        for kind, took in zip(kinds, seconds, strict=True):
            begin = time.process_time()
            kind.fill([*columns])
            took.append(time.process_time() - begin)
    chosen, twin = map(statistics.median, seconds)
    print(
        f"{TENSORS * len(columns)} numbers: {1e3 * chosen:.2f} ms CPU, in Python {1e3 * twin:.2f}: {chosen / twin:.2f}"
    )


def step_records(
    step: int, stacks: Sequence[tuple[Frame, ...]]
) -> tuple[int, list[OpRecord], list[TensorRecord], list[None]]:
    ops = [
        OpRecord(
            op_type="convolution",
            op_name=f"Default/network-Net/layer{number % 40}-Block/conv-Conv2d/convolution-op{number}",
            timestamp=1_795_247_154_000_000 + step * 10_000 + number,
            step=step,
            net_name="Net",
            order=number,
            kernel="aten::convolution",
            stack=stacks[number % len(stacks)],
            arguments=ARGUMENTS,
        )
        for number in range(OPERATORS)
    ]
    blank = TensorRecord(op=ops[0], io="input", slot=0, dtype="float32", shape=(8, 16, 32), data_size=16384)
    tensors = []
    for number in range(TENSORS):
        slot, owner = divmod(number, OPERATORS)
        summary = Summary(4096.0, 0.0, 0.0, 0.0, 1.0, 2000.0, 2095.0, 3.25 + step, -3.1, 17.5 + number, 4111.25)
        tensors.append(
            replace(blank, op=ops[owner], slot=slot, argument="input", statistics=SummaryStatistics(summary))
        )
    tensors.sort(key=lambda record: record.op.order)
    return step, ops, tensors, [None] * TENSORS


if __name__ == "__main__":
    main()
