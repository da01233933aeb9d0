"""What a dumped step of a MindSpore program costs beside MindSpore's own dump: `make bench-mindspore`.

MindSpore reads once in a process what it dumps, so each way has processes of its own, which take turns. A time is that of the fastest
quarter of the steps of a process, in milliseconds of the processor; the ratios are of the medians over all rounds. Further arguments: rounds.
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
x, y = batch(0)
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
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="opdump-bench-") as place:
        program = Path(place, "program.py")
        program.write_text(PROGRAM.format(programs=str(ROOT / "tests/parity/mindspore_programs"), steps=STEPS))
        ways = {
            "plain": ([python, str(program)], ""),
            "MindSpore's own dump": ([python, str(program)], "tensor"),
            **{
                f"opdump, {saved}": ([python, "-m", "opdump", "run", "-c", "{config}", str(program)], saved)
                for saved in ("tensor", "statistic", "full")
            },
        }
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (command, saved) in ways.items():
                times[way].append(_run(command, saved, is_own=way.startswith("MindSpore")))
    own = [statistics.median(column) for column in zip(*times["MindSpore's own dump"], strict=True)]
    print(f"{'LeNet, every step dumped':26}{'wall ms':>10}{'cpu ms':>10}{'wall / own':>12}{'cpu / own':>12}")
    for way, rows in times.items():
        wall, work = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{way:26}{wall:10.1f}{work:10.1f}{wall / own[0]:12.2f}{work / own[1]:12.2f}")


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
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
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
