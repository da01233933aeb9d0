"""Tensors on a device: the host's memory stands in for one whose work finishes late (`late_streams`), and which has limits."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import opdump
from opdump.adapters.torch.device import (
    BLOCK,
    NARROW,
    WIDTH,
    Accelerator,
    Accelerators,
    DeviceSummaries,
    blocks_of,
    queue_row,
)
from opdump.adapters.torch.memory import NAMES, elements_of
from opdump.kernels import Summary, summarise
from opdump.plan import DumpPlan
from opdump.plan.selection import KernelPattern
from tests.torch.dump_comparison import assert_same_dumps
from tests.torch.forced_device import MODES, PassingMode, forced_capture
from tests.torch.late_streams import ForcedAccelerators, LateDevice
from tests.torch.programs import PROGRAMS, ConvNet
from tests.torch.releases import no_default_device


@pytest.mark.parametrize("mode", ["statistic", "full", "digests", "sampling"])
def test_a_step_waits_once_for_each_stream(mode: str, tmp_path: Path) -> None:
    with forced_capture(DumpPlan(path=tmp_path, **MODES[mode])) as forced:
        PROGRAMS["convnet"](steps=3)
    assert forced.reader.waits <= 3 + 1  # operators after the last step are written separately


def _program_in(mode: Callable[[], AbstractContextManager[Any]]) -> Callable[[], list[Tensor]]:
    def program() -> list[Tensor]:
        torch.manual_seed(1)
        net = ConvNet().eval()
        images = torch.randn(2, 1, 8, 8)
        with mode():
            inside = net(images) * 2
        with torch.no_grad():
            return [inside.clone(), net(images).to(torch.bfloat16)]

    return program


class _Logging(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(getattr(func, "__name__", func)))
        return func(*args, **(kwargs or {}))


class _Device(AbstractContextManager[None]):
    def __enter__(self) -> None:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float16)

    def __exit__(self, *_: object) -> None:
        no_default_device()
        torch.set_default_dtype(torch.float32)


class _Deterministic(AbstractContextManager[None]):
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


PROGRAM_MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device and dtype": _Device,
    "deterministic": _Deterministic,
    "function mode": _Logging,
    "dispatch mode": PassingMode,
}


@pytest.mark.parametrize("name", PROGRAM_MODES)
@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_modes_of_the_program_do_not_reach_the_work_of_the_capture(name: str, saved_data: str, tmp_path: Path) -> None:
    program = _program_in(PROGRAM_MODES[name])
    with PassingMode():
        plain = program()
    plan = {"saved_data": saved_data, "statistic_category": ("max", "md5")}
    with forced_capture(DumpPlan(path=tmp_path / "device", **plan)) as forced:  # type: ignore[arg-type]
        captured = program()
        program()
    for one, other in zip(plain, captured, strict=True):
        assert _same_bits(one, other)
    assert forced.recorder.warnings == []
    with PassingMode(), opdump.capture(DumpPlan(path=tmp_path / "host", **plan)):  # type: ignore[arg-type]
        program()
        program()
    assert assert_same_dumps(tmp_path / "device", tmp_path / "host") > 20


@pytest.mark.parametrize("name", PROGRAM_MODES)
def test_what_begins_within_a_mode_goes_on_outside_of_it(name: str) -> None:
    """Rows allocated in inference mode would be tensors that cannot be written outside of it."""
    x = torch.arange(6.0)
    summaries = DeviceSummaries(low_precision=False, accelerators=ForcedAccelerators(LateDevice()))
    with PROGRAM_MODES[name]() as mode:
        before = len(getattr(mode, "seen", ()))
        first, copy = summaries.add(x), summaries.copy(x)
        summaries.finish()
        assert len(getattr(mode, "seen", ())) == before
    assert not copy.host.is_inference()
    second = summaries.add(x * 2)
    summaries.finish()
    assert [summaries.summary(handle).sum for handle in (first, second)] == [15, 30]
    assert copy.to_numpy().tolist() == x.tolist()
    assert summaries.refusals() == []


def test_a_function_mode_sees_only_the_program(tmp_path: Path) -> None:
    seen = []
    for capture in (nullcontext, lambda: forced_capture(DumpPlan(path=tmp_path, saved_data="full"))):
        log = _Logging()
        x = torch.randn(4, 3)
        with capture(), log:
            (x * 2).relu_()
        seen.append(log.seen)
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # from PyTorch, at the first jvp
def test_vmap_and_forward_mode_run_on_a_device(tmp_path: Path) -> None:
    def program() -> tuple[Tensor, Tensor]:
        x = torch.arange(12.0).reshape(3, 4)
        mapped = torch.func.vmap(lambda row: (row * 2).sum())(x)
        tangent = torch.func.jvp(lambda t: (t * t).sin(), (x,), (torch.ones_like(x),))[1]
        return mapped, tangent

    with PassingMode():
        plain = program()
    with forced_capture(DumpPlan(path=tmp_path, saved_data="full")):
        captured = program()
    assert all(_same_bits(one, other) for one, other in zip(plain, captured, strict=True))


def _on_streams(device: LateDevice) -> Tensor:
    """Work on three streams, with the waits that a correct program needs."""
    torch.manual_seed(2)
    x = torch.randn(50, 40)
    one, two = device.new_stream("one"), device.new_stream("two")
    one.wait_for(device.main)
    two.wait_for(device.main)
    with device.on(one):
        y = x * 3
        y.add_(1)
    with device.on(two):
        z = x.t() @ x
        z.relu_()
    device.main.wait_for(one)
    device.main.wait_for(two)
    return y @ z


@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"exception", "marks", "watch", "acl overflow"}))
def test_what_runs_on_side_streams_is_whole(mode: str, tmp_path: Path) -> None:
    device = LateDevice()
    with forced_capture(DumpPlan(path=tmp_path / "device", **MODES[mode]), device) as forced:
        captured = _on_streams(device)
    with PassingMode(), opdump.capture(DumpPlan(path=tmp_path / "host", **MODES[mode])):
        plain = _on_streams(_Streamless())
    assert _same_bits(plain, captured)
    found = assert_same_dumps(tmp_path / "device", tmp_path / "host", low="low" in mode)
    assert found >= 10 or mode in ("overflow", "acl op")
    if mode == "statistic":
        assert forced.reader.waits == 3


class _Streamless(LateDevice):
    """The same program without a device."""

    def on(self, stream: Any) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def test_nothing_is_asked_of_a_device_while_it_records_a_graph(tmp_path: Path) -> None:
    device = LateDevice()
    net = ConvNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    images = torch.randn(2, 1, 8, 8)

    def step() -> None:
        optimizer.zero_grad()
        net(images).sum().backward()
        optimizer.step()

    plan = DumpPlan(path=tmp_path, saved_data="full", statistic_category=("max", "md5"))
    with forced_capture(plan, device) as forced:
        step()
        before = device.waits, forced.reader.waits
        with device.recording_a_graph():
            step()
            assert (device.waits, forced.reader.waits) == before
        graph = device.Graph()
        for _ in range(5):
            graph.replay()
        step()
    assert device.broken == []
    assert forced.recorder.tally.skipped["device graph"] == 6
    assert forced.recorder.tally.gaps["device graph"] == 6
    (warning,) = forced.recorder.warnings
    assert "1 region" in warning
    assert "replayed 5 times" in warning
    ops = [op for op in opdump.open(tmp_path).ops(include_skipped=True) if op.op_type == "device_graph"]
    assert [op.skip for op in ops] == ["device graph"]
    assert forced.recorder.tally.executed == forced.recorder.tally.captured + forced.recorder.tally.skipped.total()


@pytest.mark.parametrize("mode", ["overflow", "exception", "watch", "acl all", "async"])
def test_graphs_are_left_unchanged_in_every_mode(mode: str, tmp_path: Path) -> None:
    device = LateDevice()
    with forced_capture(DumpPlan(path=tmp_path, **MODES[mode]), device) as forced, device.recording_a_graph():
        net = ConvNet().eval()
        net(torch.randn(2, 1, 8, 8)).sum()
        torch.linalg.svdvals(torch.ones(3, 3))
    assert device.broken == []
    assert any("recorded into device graphs" in warning for warning in forced.recorder.warnings)


def test_copies_for_digests_alone_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opdump.adapters.torch.device._PENDING_LIMIT", 4000)
    with forced_capture(DumpPlan(path=tmp_path, **MODES["digests"])) as forced:
        x = torch.randn(1000)
        for _ in range(10):
            x = x * 1.5
            assert not forced.reader.must_finish
    assert forced.reader.waits >= 10
    digests = {record.statistics["md5"] for record in opdump.open(tmp_path).tensors() if record.io == "output"}
    assert len(digests) == 11


def test_the_host_does_what_a_device_cannot_do_and_reports_it(tmp_path: Path) -> None:
    device = LateDevice()
    device.refuses = frozenset({torch.float64})
    x = torch.tensor([1.5, math.nan, -2.0])
    with forced_capture(DumpPlan(path=tmp_path, saved_data="statistic"), device) as forced:
        x * 2
    (record,) = [each for each in opdump.open(tmp_path).tensors() if (each.io, each.op.op_type) == ("output", "mul")]
    assert record.statistics["nan count"] == 1
    (warning,) = forced.recorder.warnings
    assert "statistics of float32 were computed on the host" in warning
    assert "the device has no such type" in warning


def _numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    torch.manual_seed(3)
    name = NAMES[dtype]
    if dtype.is_floating_point:
        numbers = (torch.randn(shape) * 10).to(dtype)
        if not name.startswith("float8"):
            flat = numbers.view(-1)
            flat[:5] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
        return numbers
    if dtype is torch.bool:
        return torch.rand(shape) < 0.3
    if dtype is torch.uint64:
        return torch.randint(-(2**63), 2**63 - 1, shape).view(torch.uint64)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=torch.int64).to(dtype)


def _of_host(tensor: Tensor) -> Summary:
    name = NAMES[tensor.dtype]
    dense = tensor.float() if name.startswith("float8") else tensor
    return summarise(np.array(elements_of(dense), order="C"), NAMES[dense.dtype])


_TYPES = [dtype for dtype, name in NAMES.items() if not name.startswith(("complex", "q"))]


@pytest.mark.parametrize("dtype", _TYPES, ids=[NAMES[dtype] for dtype in _TYPES])
@pytest.mark.parametrize("low_precision", [False, True])
def test_summaries_of_a_device_equal_those_of_the_host(dtype: torch.dtype, low_precision: bool) -> None:
    numbers = _numbers(dtype, (70, 33))
    summaries = DeviceSummaries(low_precision=low_precision, accelerators=ForcedAccelerators(LateDevice()))
    views = (numbers, numbers.t(), numbers[::3], numbers[:1].expand(6, 33), numbers[0, 7], numbers[:, 5:], numbers[8:])
    handles = [summaries.add(view) for view in views]
    summaries.finish()
    assert summaries.refusals() == []
    for handle, view in zip(handles, views, strict=True):
        _assert_close(summaries.summary(handle), _of_host(view), view.dtype, low=low_precision)


def test_large_tensors_are_put_together_from_blocks() -> None:
    torch.manual_seed(4)
    numbers = torch.randn(3, BLOCK // 2 + 17)
    numbers[2, -1] = math.nan
    whole = torch.randint(-(2**62), 2**62, (BLOCK + 1,))
    whole[-1] = 2**63 - 1
    summaries = DeviceSummaries(low_precision=False, accelerators=ForcedAccelerators(LateDevice()))
    views = (numbers, numbers.t(), numbers[:2].transpose(0, 1)[1:], whole)
    handles = [summaries.add(view) for view in views]
    summaries.finish()
    for handle, view in zip(handles, views, strict=True):
        _assert_close(summaries.summary(handle), _of_host(view), view.dtype)
    assert summaries.whole_extremes(handles[3]) == (2**63 - 1, int(whole.min()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.bool])
def test_temporaries_are_those_of_a_block_and_operators_few(dtype: torch.dtype) -> None:
    for blocks in (1, 3):
        numbers = torch.ones(blocks * BLOCK).to(dtype)
        rows = torch.zeros(blocks, WIDTH, dtype=torch.float64)
        wide = dtype.is_floating_point
        with _Counting((numbers, rows)) as counted:
            for row, block in zip(rows, blocks_of(numbers), strict=True):
                queue_row(block, row if wide else row[:NARROW], low_precision=False)
        assert counted.operators <= 18 * blocks
        assert counted.peak <= 9 * BLOCK + 4096


class _Counting(TorchDispatchMode):
    """Counts operators, and the bytes of their results that are still alive."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = self.peak = 0
        self._given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators += 1
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._given:
                self._alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def test_infinite_and_overflowing_sums_are_those_of_float64() -> None:
    summaries = DeviceSummaries(low_precision=False, accelerators=ForcedAccelerators(LateDevice()))
    views = [
        torch.tensor([math.inf, -math.inf]),
        torch.tensor([1e308, 1e308], dtype=torch.float64),
        torch.full((BLOCK + 5,), 1e308, dtype=torch.float64),
    ]
    handles = [summaries.add(view) for view in views]
    summaries.finish()
    assert math.isnan(summaries.summary(handles[0]).sum)
    assert summaries.summary(handles[1]).sum == math.inf
    assert summaries.summary(handles[2]).sum_squares == math.inf


def _assert_close(found: Summary, expected: Summary, dtype: torch.dtype, *, low: bool = False) -> None:
    """Counts and extremes are equal; sums may differ as much as a different order of additions allows."""
    exact = slice(0, 9)
    np.testing.assert_array_equal(np.array(found[exact]), np.array(expected[exact]))
    epsilon = torch.finfo(dtype).eps if low and dtype.is_floating_point else torch.finfo(torch.float64).eps
    bound = expected.count * epsilon
    for name in ("sum", "sum_squares"):
        one, other = getattr(found, name), getattr(expected, name)
        if not math.isfinite(other) or (low and not math.isfinite(one)):
            assert str(one) == str(other) or low
        else:
            assert abs(one - other) <= bound * max(expected.sum_squares, 1.0), name


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


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


def test_streams_beside_the_recorded_one_are_left_unchanged_too(tmp_path: Path) -> None:
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


TURNS = pytest.mark.parametrize("turns", [0, 3])


def test_code_that_does_not_wait_reads_noise() -> None:
    """A forgotten wait shows."""
    device = LateDevice()
    with device.program():
        x = torch.ones(4)
        with device.on(device.new_stream()):
            y = x * 2  # did not wait for x
        read = np.array(elements_of(y))
    assert read.tolist() != [2, 2, 2, 2]


@TURNS
def test_what_the_host_writes_into_memory_of_no_operator_is_kept(turns: int) -> None:
    """`empty` writes nothing, so its memory cannot be late."""
    with LateDevice(turns).program():
        for empty in (torch.empty(4), torch.ones(4).new_empty(4), torch.empty_strided((4,), (1,))):
            empty.numpy()[:] = 3
            assert (empty * 2).sum().item() == 24
            assert empty.tolist() == [3] * 4


@TURNS
def test_lengths_of_packed_sequences_are_the_hosts(turns: int) -> None:
    tokens, lengths = torch.ones(3, 6, 2), torch.tensor([3, 6, 4])
    with LateDevice(turns).program():
        packed = pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False)
        packed.batch_sizes[0].item()  # a network calls this too; from now on the host knows the lengths
        _, found = pad_packed_sequence(packed, batch_first=True)
    assert found.tolist() == [3, 6, 4]


@TURNS
def test_memory_that_a_tensor_no_longer_has_is_left_unchanged(turns: int) -> None:
    with LateDevice(turns).program():
        grown = torch.ones(4).mul_(2)
        grown.resize_(4000)
        others = [torch.full((4,), 5.0) for _ in range(100)]  # some reuse the memory of the four numbers
        kept = grown[:4] * 3
        freed = torch.ones(4) * 2
        freed.untyped_storage().resize_(0)
        others += [torch.full((4,), 5.0) for _ in range(100)]
    assert kept.tolist() == [6] * 4
    assert all(other.tolist() == [5] * 4 for other in others)


@TURNS
def test_an_empty_tensor_is_late_once_an_operator_wrote_it(turns: int) -> None:
    device = LateDevice(turns)
    with device.program():
        written = torch.empty(4)
        written.fill_(2)
        assert list(written.numpy()) != [2] * 4
        device.wait(device.current)
        assert list(written.numpy()) == [2] * 4
