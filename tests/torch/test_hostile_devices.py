"""Limits and refusals of devices, and how programs use devices: the host's memory stands in for one (`late_streams`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import opdump
from opdump.adapters.torch.device import Accelerator, Accelerators
from opdump.plan import DumpPlan
from opdump.plan.selection import KernelPattern
from tests.torch.dump_comparison import assert_same_dumps
from tests.torch.forced_device import MODES, PassingMode, forced_capture
from tests.torch.late_streams import LateDevice


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Dense, gapped, negated and sparse tensors of floats and integers."""
    y = x.t() @ x
    y[:, ::3].add_(1)
    (x[:, 1:] * 2).round().to(torch.int64).cumsum(1)
    (x > 0).to_sparse() * 2
    torch.view_as_complex(x.reshape(-1, 2)).conj().imag.mul(2.0)
    x[:1].expand(40, -1).relu()
    return y


@pytest.mark.parametrize("mode", ["statistic", "full", "digests", "sampling", "low precision", "overflow", "acl all"])
def test_a_device_without_memory_loses_nothing(mode: str, tmp_path: Path) -> None:
    device = LateDevice()
    device.room = 600
    torch.manual_seed(0)
    x = torch.randn(50, 40)
    with forced_capture(DumpPlan(path=tmp_path / "device", **MODES[mode]), device) as forced:
        captured = _mixed(x)
    with PassingMode(), opdump.capture(DumpPlan(path=tmp_path / "host", **MODES[mode])):
        plain = _mixed(x)
    assert captured.numpy().tobytes() == plain.numpy().tobytes()
    assert assert_same_dumps(tmp_path / "device", tmp_path / "host", low="low" in mode) >= 10 or mode == "overflow"
    if mode == "statistic":
        assert any("the device is out of memory" in warning for warning in forced.recorder.warnings)


def test_copies_for_statistics_that_the_host_makes_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opdump.adapters.torch.device._PENDING_LIMIT", 4000)
    device = LateDevice()
    device.refuses = frozenset({torch.float64})
    with forced_capture(DumpPlan(path=tmp_path, **MODES["statistic"]), device) as forced:
        x = torch.randn(1000)
        for _ in range(10):
            x = x * 1.5
            assert not forced.reader.must_finish
    assert forced.reader.waits >= 10
    found = [each.statistics["max"] for each in opdump.open(tmp_path).tensors() if each.io == "output"]
    assert len(set(found)) == 11


def test_the_capture_needs_no_library_that_deterministic_programs_forbid(tmp_path: Path) -> None:
    device = LateDevice()
    device.lacks = frozenset(
        {"dot", "vdot", "mv", "mm", "addmm", "bmm", "cumsum", "put_", "index_add_", "scatter_add_"}
    )
    for mode in ("statistic", "low precision"):
        with forced_capture(DumpPlan(path=tmp_path / mode, **MODES[mode]), device) as forced:
            for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8):
                torch.ones(4).to(dtype).repeat(2)
        assert forced.recorder.warnings == []


def test_the_host_continues_if_a_device_starts_to_refuse_operators(tmp_path: Path) -> None:
    device = LateDevice()
    with forced_capture(DumpPlan(path=tmp_path, **MODES["statistic"]), device) as forced:
        x = torch.tensor([1.5, math.nan, -2.0]) * 2
        device.lacks = frozenset({"sum"})
        x * 2
    records = {each.op.op_name: each for each in opdump.open(tmp_path).tensors() if each.io == "output"}
    assert [each.statistics["min"] for each in records.values()][-1:] == pytest.approx([math.nan], nan_ok=True)
    assert [each.statistics["nan count"] for each in records.values()] == [1] * len(records)
    (warning,) = forced.recorder.warnings
    assert "statistics of float32 were computed on the host" in warning
    assert "sum does not have a deterministic implementation" in warning


@pytest.mark.parametrize("mode", ["statistic", "full", "digests", "overflow", "async", "acl all"])
@pytest.mark.parametrize("inference", [False, True])
def test_a_copy_to_the_host_that_the_program_does_not_wait_for_is_whole(
    inference: bool, mode: str, tmp_path: Path
) -> None:
    def program(device: LateDevice) -> torch.Tensor:
        x = torch.full((40,), 60000.0).half() * 2
        on_host, others = (device.on_the_host(torch.empty(40, dtype=torch.half)) for _ in range(2))
        on_host.copy_(x, non_blocking=True)
        torch._foreach_copy_([others], [x], non_blocking=True)
        if isinstance(device, _NoDevice):
            return on_host
        device.wait(device.current)  # the program would wait at some later point
        return on_host

    device = LateDevice()
    with torch.inference_mode(inference):
        with forced_capture(DumpPlan(path=tmp_path / "device", **MODES[mode]), device):
            captured = program(device)
        with PassingMode(), opdump.capture(DumpPlan(path=tmp_path / "host", **MODES[mode])):
            plain = program(_NoDevice())
    assert captured.tolist() == plain.tolist()
    assert assert_same_dumps(tmp_path / "device", tmp_path / "host") >= (2 if mode == "overflow" else 4)


class _NoDevice(LateDevice):
    """Lets the program run without a device."""


def test_a_copy_that_the_program_does_not_wait_for_costs_nothing_where_it_is_not_dumped(tmp_path: Path) -> None:
    device = LateDevice()
    with forced_capture(DumpPlan(path=tmp_path, kernels=(KernelPattern.parse("relu"),), selection="kernels"), device):
        x = torch.ones(4) * 2
        device.on_the_host(torch.empty(4)).copy_(x, non_blocking=True)
        assert device.waits == 0


def _in_a_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


@pytest.mark.parametrize("mode", ["statistic", "full", "overflow", "watch", "acl all", "async"])
def test_no_thread_breaks_a_graph_that_another_one_records(mode: str, tmp_path: Path) -> None:
    device = LateDevice()
    graph = LateDevice.Graph()
    x = torch.ones(3)
    with forced_capture(DumpPlan(path=tmp_path, **MODES[mode]), device) as forced:
        x * 2
        _in_a_thread(graph.capture_begin)
        before = forced.reader.waits, device.waits, forced.recorder.tally.captured
        for _ in range(3):
            x * 3
        dump_step = forced.recorder.tally.executed
        assert (forced.reader.waits, device.waits, forced.recorder.tally.captured) == before
        _in_a_thread(graph.capture_end)
        x * 4
    assert forced.recorder.tally.executed >= dump_step
    assert forced.recorder.tally.skipped["device graph"] == 3
    (warning,) = (each for each in forced.recorder.warnings if "graph" in each)
    assert "3 operators of other threads" in warning
    assert "capture_error_mode" in warning
    assert forced.recorder.tally.executed == forced.recorder.tally.captured + forced.recorder.tally.skipped.total()


def test_a_graph_that_only_its_own_thread_can_break_leaves_the_others_alone(tmp_path: Path) -> None:
    graph = LateDevice.Graph()
    with forced_capture(DumpPlan(path=tmp_path, **MODES["full"])) as forced:
        _in_a_thread(lambda: graph.capture_begin(capture_error_mode="thread_local"))
        torch.ones(3) * 3
        _in_a_thread(graph.capture_end)
    assert forced.recorder.warnings == []
    assert forced.recorder.tally.skipped["device graph"] == 0


def test_streams_beside_the_recorded_one_are_left_alone_too(tmp_path: Path) -> None:
    """The recording thread may use a stream outside of the graph; waiting for that stream would invalidate the graph."""
    device = LateDevice()
    graph = LateDevice.Graph()
    with forced_capture(DumpPlan(path=tmp_path, **MODES["overflow"]), device) as forced:
        graph.capture_begin(None, "relaxed")
        with device.on(device.new_stream()):
            torch.ones(3) * 3
        assert (forced.reader.waits, device.waits) == (0, 0)
        graph.capture_end()
    assert any("recorded into device graphs" in warning for warning in forced.recorder.warnings)


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")


def _refused(x: torch.Tensor) -> object:
    answer: object = _Refusing.apply(x)  # type: ignore[no-untyped-call]
    return answer


@pytest.mark.parametrize(
    "call",
    [_refused, lambda x: torch.ones(2, requires_grad=True).backward(), lambda x: x @ x],
    ids=["function", "backward", "operator"],
)
def test_what_fails_while_a_graph_is_recorded_waits_for_no_device(
    call: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    device = LateDevice()
    x = torch.ones(3, 2)
    with forced_capture(DumpPlan(path=tmp_path, **MODES["exception"]), device) as forced:
        x.add_(1)  # the previous value is on its way to the host, in case this operator fails
        before = forced.reader.waits, device.waits
        with device.recording_a_graph(), pytest.raises(RuntimeError):
            call(x)
        assert (forced.reader.waits, device.waits, device.broken) == (*before, [])
    recorder = forced.recorder
    assert (recorder.tally.captured, recorder.tally.skipped["device graph"]) == (0, 1)
    assert recorder.tally.executed == recorder.tally.skipped.total()


def test_a_capture_that_ends_while_a_graph_is_recorded_says_what_is_missing(tmp_path: Path) -> None:
    graph = LateDevice.Graph()
    with forced_capture(DumpPlan(path=tmp_path, **MODES["full"])) as forced:
        torch.ones(3) * 3
        _in_a_thread(graph.capture_begin)
    recorder = forced.recorder
    assert recorder.tally.gaps["not written"] > 0
    assert any("End the capture before the graph is recorded" in warning for warning in recorder.warnings)
    assert recorder.tally.executed == recorder.tally.captured + recorder.tally.skipped.total()


def test_a_network_that_was_made_in_inference_mode_runs_outside_of_it(tmp_path: Path) -> None:
    with torch.inference_mode():
        net = torch.nn.Linear(3, 2)
    with torch.no_grad():
        plain = net(torch.ones(2, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with opdump.capture(path=tmp_path) as dump:
        for _ in range(2):
            with torch.no_grad():
                captured = net(torch.ones(2, 3))
            with torch.enable_grad():
                optimizer.step()
    assert captured.numpy().tobytes() == plain.numpy().tobytes()
    assert dump.report is not None
    assert dump.report.captured > 0


def test_no_device_is_asked_whether_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking CUDA initialises it, and processes forked afterwards could not use it."""

    def asked(*_: object, **__: object) -> bool:
        raise AssertionError("a device was asked")

    for name in ("is_available", "init", "_lazy_init", "current_device", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, asked)
    if hasattr(torch, "accelerator"):
        monkeypatch.setattr(torch.accelerator, "is_available", asked)
        monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"), raising=False)
    with opdump.capture(path=tmp_path) as dump:
        torch.ones(2) * 2
    assert dump.report is not None
    assert dump.report.captured > 0


def test_a_kind_of_device_without_a_module_is_one_without_streams() -> None:
    class Elsewhere:
        device = torch.device("privateuseone")

    found = Accelerators().of(Elsewhere())  # type: ignore[arg-type]  # looks enough like a tensor for this call
    assert type(found) is Accelerator
