"""The time of `opdump compare` for dumps with statistics: `python benchmarks/compare_dumps.py [--tensors 1000000] [--operators 1000] [--jobs 2]`.

Makes two dumps with the writer, without a framework: steps of a chain of `--operators` operators with one input and one output each, which
differ by rounding. The command reads them, matches and judges all steps, and compares all outputs. The output is wall-clock seconds, CPU
seconds, peak memory, the time of only reading both dumps, and the start of the command (`opdump compare --help`).

Goals: statistics of a million pairs of tensors in 10 s; a start in 0.5 s.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from opdump.index.writer import RunFacts
from opdump.kernels import Summary
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import Frame, OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics

READ = "import sys, opdump; [list(opdump.open(path)) for path in sys.argv[1:]]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tensors", type=int, default=1_000_000, help="pairs of tensors")
    parser.add_argument("--operators", type=int, default=1000, help="operators per step")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    steps = max(1, options.tensors // (2 * options.operators))
    with tempfile.TemporaryDirectory(prefix="opdump-compare-") as place:
        dumps = [str(Path(place, name)) for name in "ab"]
        for path, factor in zip(dumps, (1.0, 1 + 1e-7), strict=True):
            write(Path(path), steps, factor, options.operators)
        print(f"{2 * options.operators * steps} pairs of tensors in {steps} steps")
        measure("start", ["-m", "opdump", "compare", "--help"])
        measure("import opdump", ["-c", "import opdump"])
        measure("both dumps, read", ["-c", READ, *dumps])
        measure("opdump compare", ["-m", "opdump", "compare", *dumps, "--jobs", str(options.jobs)])


def write(path: Path, steps: int, factor: float, operators: int) -> None:
    """Write a dump with statistics; those of the second run differ by rounding."""
    plan = DumpPlan(path=path, saved_data="statistic")
    writer = SyncWriter(plan, RunFacts(0, "CPU", "none", "0", "0", ("benchmark",), plan.to_json()))
    stacks = [
        (Frame("train.py", line, "step", "loss = model(x)"), Frame("main.py", 3, "main", "")) for line in range(80)
    ]
    for step in range(steps):
        ops, tensors = [], []
        for number in range(operators):
            op = OpRecord(
                op_type="relu",
                op_name=f"Default/network-Net/layer{number // 10}-Block/relu-op{number}",
                timestamp=1_795_247_154_000_000 + step * 10_000 + number,
                step=step,
                net_name="Net",
                order=number,
                kernel="aten::relu",
                stack=stacks[number % len(stacks)],
            )
            source = f"{ops[-1].op_name}:0" if ops else "Parameter.inputs0"
            tensors += [
                tensor(op, "input", step, number - 1, factor, source),
                tensor(op, "output", step, number, factor),
            ]
            ops.append(op)
        writer.write_step(step, ops, tensors, [None] * len(tensors))
    writer.close({"executed": operators * steps})


def tensor(op: OpRecord, io: str, step: int, number: int, factor: float, source: str = "") -> TensorRecord:
    largest = factor * (2.0 + number + step / 7)
    summary = Summary(4096.0, 0.0, 0.0, 0.0, 1.0, 2000.0, 2095.0, largest, -3.1, 17.5 * largest, 64 * largest**2)
    return TensorRecord(
        op, "input" if io == "input" else "output", 0, "float32", (8, 16, 32),
        statistics=SummaryStatistics(summary), source=source, data_size=16384,
    )  # fmt: skip


def measure(name: str, arguments: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{name:20}{seconds:8.2f} s, {cpu:8.2f} s CPU, peak memory of a process so far {after.ru_maxrss / 1e3:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
