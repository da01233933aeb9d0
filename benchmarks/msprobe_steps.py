"""Trains one of the benchmarks' networks under msprobe, one round per line on stdin: the other side of `python -m benchmarks.peers`.

    python msprobe_steps.py GPT md5

Runs in an environment with msprobe. A line on stdin is a number of steps; the answer is a line of JSON with the CPU seconds of one step
and the bytes written for it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from memory import keep_freed_memory
from msprobe.pytorch import PrecisionDebugger
from workloads import STEPS


def main() -> None:
    name, kind = sys.argv[1:]
    torch.set_num_threads(1)
    keep_freed_memory()
    root = Path(tempfile.mkdtemp(prefix="msprobe-"))
    config = root / "config.json"
    section = {} if kind == "tensors" else {"summary_mode": "md5" if kind == "+ md5" else "statistics"}
    task = "tensor" if kind == "tensors" else "statistics"
    settings = {"task": task, "dump_path": str(root / "dump"), "level": "L1", "risk_level": "ALL", task: section}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(config))
    step = STEPS[name]()
    try:
        for line in sys.stdin:
            count = int(line)
            began = time.process_time()
            for _ in range(count):
                debugger.start()
                step()
                debugger.stop()
                debugger.step()
            seconds = (time.process_time() - began) / count
            filed = sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) // count
            shutil.rmtree(root / "dump", ignore_errors=True)
            print(json.dumps({"seconds": seconds, "bytes": filed}), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
