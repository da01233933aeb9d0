"""The cost of a capture per run of an ONNX model: plain, and with statistics of every tensor, at the same optimisation level.

    python benchmarks/onnx_overhead.py [--rounds 30] [--level disable|basic|extended|all]

ResNet-18 exported from PyTorch, batch 8 of 3x64x64, one thread. Runs of all kinds alternate in one process, in shuffled order, each
through its own session. The statistics are written to one table (`statistic.csv`) or to one table per operator (`acl`). `program` is a session
of the program, recorded as `opdump run` does it, by a second run of another session. Times are CPU
seconds of all threads, which depend less on other programs than wall-clock time. The output is the ratio to plain with its 95 % interval.
`again` is plain a second time, and shows the machine's noise. Weights are summarised once, so the first run under capture costs more; it
is reported separately.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from intervals import interval
from workloads import resnet18

import opdump
from opdump.adapters.host import NumpyReader
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.index.writer import RunFacts, own_version
from opdump.kernels import active, set_threads
from opdump.layouts.base import open_writer
from opdump.plan import DumpPlan
from opdump.recorder import make_recorder
from opdump.statistics import DEVICE_DEFAULT

WARM_UP = 1
TIMED = 3
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
KINDS = ("again", "statistic.csv", "acl", "program")


def exported_model() -> bytes:
    torch.manual_seed(0)
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # This exporter keeps batch normalisation as an operator, as in most existing files.
        torch.onnx.export(
            resnet18().train(False),
            (torch.randn(8, 3, 64, 64),),
            content,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=["x"],
            output_names=["y"],
        )
    return content.getvalue()


def recorded_session(
    content: bytes, level: str, folder: Path, layout: str, options: onnxruntime.SessionOptions
) -> OnnxSession:
    plan = DumpPlan(path=folder, layout=layout, saved_data="statistic", statistic_category=DEVICE_DEFAULT)
    run = RunFacts(0, "CPU", "onnxruntime", onnxruntime.__version__, own_version(), (__file__,), plan.to_json())
    return OnnxSession(
        content,
        recorder=make_recorder(plan, open_writer(plan, run), NumpyReader.of_plan(plan)),
        plan=plan,
        model_id=0,
        level=level,
        session_options=options,  # type: ignore[arg-type]  # onnxruntime has no types
    )


def program_session(content: bytes, level: str) -> onnxruntime.InferenceSession:
    options = one_thread()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def one_thread() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def seconds(run: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        run()
    took = []
    for _ in range(TIMED):
        begin = time.process_time()
        run()
        took.append(time.process_time() - begin)
    return statistics.median(took)


def measure(content: bytes, level: str, root: Path, rounds: int) -> str:
    """The row of a level."""
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 3, 64, 64)).astype(np.float32)}
    session = recorded_session(content, level, root / level, "mindspore-2.3", one_thread())
    as_device = recorded_session(content, level, root / f"{level}-acl", "acl", one_thread())
    as_device.run(None, feeds)
    begin = time.process_time()
    session.run(None, feeds)
    first = time.process_time() - begin
    path = root / f"{level}-program"
    with opdump.capture(path=path, framework="onnxruntime", saved_data="statistic", statistic_category=DEVICE_DEFAULT):
        runs: dict[str, Callable[[], object]] = {
            "plain": partial(session.run_plain, None, feeds),
            "again": partial(session.run_plain, None, feeds),
            "statistic.csv": partial(session.run, None, feeds),
            "acl": partial(as_device.run, None, feeds),
            "program": partial(program_session(content, level).run, None, feeds),
        }
        took: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name in random.sample(list(runs), len(runs)):
                took[name].append(seconds(runs[name]))
    session.close()
    as_device.close()
    plain = statistics.median(took["plain"])
    cells = "".join(f"{ratio(took[name], took['plain']):>22}" for name in KINDS)
    return f"{level:10}{plain * 1e3:7.1f} ms{cells}{first * 1e3:8.1f} ms   {len(session.nodes)} nodes"


def ratio(times: list[float], plain: list[float]) -> str:
    ratios = [value / base for value, base in zip(times, plain, strict=True)]
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--level", choices=LEVELS)
    arguments = parser.parse_args()
    set_threads(1)
    content = exported_model()
    print(f"kernels: {active()}; onnxruntime {onnxruntime.__version__}; ratios to plain with their 95 % intervals")
    kinds = "".join(f"{name:>22}" for name in KINDS)
    print(f"{'level':10}{'plain':>10}{kinds}{'first run':>11}   {arguments.rounds} rounds")
    root = Path(tempfile.mkdtemp(prefix="opdump-onnx-overhead-"))
    try:
        for level in [arguments.level] if arguments.level else LEVELS:
            print(measure(content, level, root, arguments.rounds), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
