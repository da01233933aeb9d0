"""Runs programs of one chapter of tests/parity/programs, each plain and then captured, in this one process.

    run_programs.py CHAPTER RESULTS.json DUMPS NAME...

Every program runs twice plain, to detect a program whose answer is not reproducible, and once in each mode. What it returns and the
state of the random generators are compared bit by bit. With RANK and WORLD_SIZE in the environment, every rank runs this.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import opdump
from tests.parity import torchvision_schemas  # noqa: F401  # programs import torchvision
from tests.torch.answers import answer_of, differences

_STATISTICS = {
    "common_dump_settings": {
        "dump_mode": 0,
        "net_name": "Net",
        "iteration": "all",
        "saved_data": "statistic",
        "input_output": 0,
        "kernels": [],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
    },
    "e2e_dump_settings": {"enable": True, "trans_flag": True},
}
_ELEMENTS = {"dump": {"dump_list": [], "dump_mode": "all", "dump_op_switch": "on", "dump_level": "op"}}
MODES: dict[str, dict[str, Any]] = {
    "data_dump.json, statistics": _STATISTICS,
    "acl.json, elements": _ELEMENTS,
    "acl.json, overflow": {"dump": {"dump_debug": "on"}},
    "acl.json, exception": {"dump": {"dump_scene": "lite_exception"}},
}


def main(chapter: str, results: str, dumps: str, *names: str) -> None:
    told = {}
    programs = importlib.import_module(f"tests.parity.programs.{chapter}")
    with _process_group():
        for name in names:
            began = time.monotonic()
            told[name] = _tried(getattr(programs, name), Path(dumps))
            print(f"{chapter}/{name}: {time.monotonic() - began:.1f} s", flush=True)
            Path(results).write_text(json.dumps(told))


def _process_group() -> AbstractContextManager[Any]:
    if "WORLD_SIZE" not in os.environ:
        return nullcontext()
    import torch.distributed as dist

    class Group(AbstractContextManager[None]):
        def __enter__(self) -> None:
            store = f"file://{os.environ['PROGRAMS_STORE']}"
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group("gloo", store, rank=rank, world_size=size)

        def __exit__(self, *_: object) -> None:
            dist.barrier()
            dist.destroy_process_group()

    return Group()


def _tried(program: Callable[[], Any], dumps: Path) -> dict[str, Any]:
    """The results for a program: figures by mode, and the errors, if any."""
    told: dict[str, Any] = {}
    try:
        plain = answer_of(program)
        told["values"] = len(plain)
        different = differences(plain, answer_of(program))
        if different:
            return {**told, "failed": f"two plain runs differ in {different}"}
        for mode, config in MODES.items():
            place = dumps / f"rank{os.environ.get('RANK', '0')}"
            shutil.rmtree(place, ignore_errors=True)
            (place / "dump").mkdir(parents=True)
            next(iter(config.values()))["path" if "common_dump_settings" in config else "dump_path"] = str(
                place / "dump"
            )
            file = place / ("data_dump.json" if "common_dump_settings" in config else "acl.json")
            file.write_text(json.dumps(config))
            began = time.monotonic()
            with opdump.capture(file) as dump:
                captured = answer_of(program)
            assert dump.report is not None
            told[mode] = {
                "different": differences(plain, captured),
                "executed": dump.report.executed,
                "captured": dump.report.captured,
                "steps": list(dump.report.steps),
                "skipped": {**dump.report.skipped, **dump.report.tensors_skipped},
                "seconds": round(time.monotonic() - began, 2),
            }
            shutil.rmtree(place)
    except Exception:  # noqa: BLE001  # the test reports it
        told["failed"] = traceback.format_exc()
    return told


if __name__ == "__main__":
    main(*sys.argv[1:])
