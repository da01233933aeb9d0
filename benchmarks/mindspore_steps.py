"""The cost of a recorded step of a MindSpore program relative to MindSpore's own dump: `python benchmarks/mindspore_steps.py [ROUNDS]`, in an
environment with MindSpore and opdump (`make test-mindspore` sets up .venv-mindspore).

MindSpore reads its dump configuration once per process, so each variant has its own processes, which alternate. A time is the lower
quartile of the steps of a process, then the median of the rounds; ratios are computed from these.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = 32
SIZES = (4, 32)
OWN = "MindSpore's own dump"
PROGRAM = """
import resource, sys, time
import mindspore as ms
from mindspore import nn
sys.path.insert(0, {programs!r})
from shared import LeNet, batch, filled
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")
network = filled(LeNet())
optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
train.set_train()
x, y = batch(0, {size})
walls, works = [], []
for _ in range({steps}):
    wall, work = time.perf_counter(), time.process_time()
    train(x, y).asnumpy()
    walls.append(time.perf_counter() - wall)
    works.append(time.process_time() - work)
fastest = lambda times: sorted(times[2:])[len(times) // 4] * 1e3
print("times", fastest(walls), fastest(works))
"""


def main(rounds: int) -> None:
    print(f"{'LeNet, every step dumped':34}{'wall ms':>10}{'cpu ms':>10}{'wall / own':>12}{'cpu / own':>12}")
    for size in SIZES:
        _measure(size, rounds)


def _measure(size: int, rounds: int) -> None:
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="opdump-bench-") as place:
        program = Path(place, "program.py")
        text = PROGRAM.format(programs=str(ROOT / "tests/parity/mindspore_programs"), steps=STEPS, size=size)
        program.write_text(text)
        ways = {
            "plain": ([python, str(program)], ""),
            OWN: ([python, str(program)], "tensor"),
            **{
                f"opdump, {saved}": ([python, "-m", "opdump", "run", "-c", "{config}", str(program)], saved)
                for saved in ("tensor", "statistic", "full")
            },
        }
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (command, saved) in ways.items():
                times[way].append(_run(command, saved, is_own=way == OWN))
    own = [statistics.median(column) for column in zip(*times[OWN], strict=True)]
    for way, rows in times.items():
        wall, work = (statistics.median(column) for column in zip(*rows, strict=True))
        name = f"batch {size}: {way}"
        print(f"{name:34}{wall:10.1f}{work:10.1f}{wall / own[0]:12.2f}{work / own[1]:12.2f}")


def _run(command: list[str], saved: str, *, is_own: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="opdump-bench-") as place:
        config = Path(place, "data_dump.json")
        common = {
            "op_debug_mode": 0,
            "dump_mode": 0,
            "path": f"{place}/dump",
            "net_name": "LeNet",
            "iteration": "all",
            "saved_data": saved,
            "input_output": 0,
            "kernels": [],
            "support_device": [0],
        }
        sections = {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}
        config.write_text(json.dumps(sections))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("MINDSPORE_DUMP_CONFIG", None)
        if is_own:
            environment["MINDSPORE_DUMP_CONFIG"] = str(config)
        filled = [str(config) if each == "{config}" else each for each in command]
        done = subprocess.run(filled, env=environment, capture_output=True, text=True, check=False, cwd=place)
    if done.returncode:
        sys.exit(f"{' '.join(filled)}\n{done.stdout}\n{done.stderr}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("times "))
    wall, work = map(float, line.split()[1:])
    return wall, work


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
