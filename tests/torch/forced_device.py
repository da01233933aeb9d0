"""Captures programs as if their tensors were on a device (`late_streams`).

    assert_same_on_a_device(PROGRAMS["digits, training"], "overflow", "turns", tmp_path)

compares the program's answer with a plain run, bit for bit, and the dump with the dump that the host's path writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opdump.adapters.base import Settings
from opdump.adapters.program_marks import ProgramMarks
from opdump.adapters.torch.adapter import TorchAdapter
from opdump.adapters.torch.device import Accelerators
from opdump.adapters.torch.reader import TensorReader
from opdump.index.writer import RunFacts
from opdump.layouts.base import open_writer
from opdump.plan import DumpPlan, ModelSelection
from opdump.recorder import Recorder, make_recorder
from tests.torch.answers import answer_of, differences
from tests.torch.dump_comparison import assert_same_dumps
from tests.torch.late_streams import ForcedAccelerators, LateDevice, fill_unwritten

_ACL: Mapping[str, Any] = {"layout": "acl", "file_format": "bin", "dialect": "acl"}
MODES: dict[str, Mapping[str, Any]] = {
    "statistic": {"saved_data": "statistic", "statistic_category": ("max", "min", "avg", "l2norm", "nan count")},
    "full": {"saved_data": "full"},
    "tensor": {"saved_data": "tensor"},
    "digests": {"saved_data": "statistic", "statistic_category": ("md5", "hash", "max")},
    "sampling": {"saved_data": "full", "sample_num": 5},
    "low precision": {
        "saved_data": "statistic",
        "stat_calc_mode": "device",
        "device_stat_precision_mode": "low",
    },
    "marks": {"saved_data": "full", "selection": "marked"},
    "acl kernel": {"dump_level": "kernel", **_ACL},
    "acl op": {"dump_level": "op", **_ACL},
    "acl all": {"dump_level": "all", **_ACL},
    "acl statistic": {"saved_data": "statistic", "dump_level": "kernel", **_ACL},
    "async": {"layout": "mindspore-async"},
    "async npy": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "overflow": {"captures": "overflow", "saved_data": "full"},
    "acl overflow": {"captures": "overflow", **_ACL},
    "exception": {"captures": "exception", **_ACL},
    "watch": {
        "captures": "watch",
        "models": (ModelSelection(watcher_nodes=("conv1", "transformer.h.0.mlp.act", "wide", "0", "fc", "encode")),),
        **_ACL,
    },
}
MARKED = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.LayerNorm)
"""Module classes that the mode `marks` dumps."""
STREAMS = {"one": 0, "turns": 3}
"""The number of streams in turn: 0 runs the program on one stream, 3 runs each operator on a different stream than the one before."""


@dataclass
class Forced:
    """A capture with its device, recorder and reader."""

    device: LateDevice
    recorder: Recorder
    reader: TensorReader


@contextmanager
def forced_capture(plan: DumpPlan, device: LateDevice | None = None, **settings: Any) -> Iterator[Forced]:
    """Capture the program in the block, which runs on the device's streams."""
    device = LateDevice() if device is None else device
    with device.program(), _captured(plan, ForcedAccelerators(device), settings) as (recorder, reader):
        yield Forced(device, recorder, reader)


@contextmanager
def _captured(
    plan: DumpPlan, accelerators: Accelerators, settings: Mapping[str, Any]
) -> Iterator[tuple[Recorder, TensorReader]]:
    adapter = TorchAdapter(accelerators)
    writer = open_writer(plan, RunFacts(0, "GPU", "torch", str(torch.__version__), "0", ("test",), plan.to_json()))
    reader = adapter.reader(plan)
    recorder = make_recorder(plan, writer, reader)
    with adapter.attach(recorder, Settings(**settings)):
        yield recorder, reader
    writer.close({"executed": recorder.tally.executed, "captured": recorder.tally.captured})


def assert_same_on_a_device(program: Callable[[], Any], mode: str, streams: str, path: Path) -> int:
    """Assert that capture does not change a program on a device and writes the same dump as on the host; return the number of tensors."""
    with PassingMode():
        plain = answer_of(program)
    device = LateDevice(STREAMS[streams])
    forced: Forced
    host: Recorder

    def on_the_device() -> Any:
        nonlocal forced
        with forced_capture(DumpPlan(path=path / "device", **MODES[mode]), device, marks=_marks(mode)) as forced:
            return program()

    def on_the_host() -> Any:
        nonlocal host
        plan = DumpPlan(path=path / "host", **MODES[mode])
        with PassingMode(), _captured(plan, Accelerators(), {"marks": _marks(mode)}) as (host, _):
            return program()

    assert differences(plain, answer_of(on_the_device)) == []
    assert differences(plain, answer_of(on_the_host)) == []
    assert _told(forced.recorder) == _told(host)
    assert device.broken == []
    return assert_same_dumps(path / "device", path / "host", low="low" in mode)


def assert_left_alone_in_graphs(program: Callable[[], Any], mode: str, path: Path) -> int:
    """Assert that the capture asks nothing of a device that records a program into a graph; return the number of operators."""
    with PassingMode():
        plain = answer_of(program)
    device = LateDevice()
    forced: Forced

    def recorded() -> Any:
        nonlocal forced
        plan = DumpPlan(path=path, **MODES[mode])
        with forced_capture(plan, device, marks=_marks(mode)) as forced, device.recording_a_graph():
            return program()

    assert differences(plain, answer_of(recorded)) == []
    assert device.broken == []
    recorder = forced.recorder
    assert recorder.tally.captured == 0
    assert recorder.tally.executed == recorder.tally.skipped.total()
    assert any("recorded into device graphs" in warning for warning in recorder.warnings)
    return forced.device.orders


def _marks(mode: str) -> ProgramMarks:
    marks = ProgramMarks()
    for kind in MARKED if mode == "marks" else ():
        marks.set(kind, enabled=True)
    return marks


def _told(recorder: Recorder) -> dict[str, Any]:
    """What the end of a run reports."""
    return {
        "executed": recorder.tally.executed,
        "captured": recorder.tally.captured,
        "tensors": recorder.tally.tensors,
        "skipped": recorder.tally.skipped,
        "tensors_skipped": recorder.tally.tensors_skipped,
        "steps": recorder.tally.steps,
        "warnings": recorder.warnings,
    }


class PassingMode(TorchDispatchMode):
    """A mode of the program that changes nothing. Some composites run differently under any mode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.OpOverload):
            fill_unwritten(func, result)
        return result

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled, as on the device."""
        return True
