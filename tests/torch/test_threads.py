"""Threads of the program under a recording mode: real threads, real pools, real processes."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import Queue
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import opdump
from opdump.adapters.threads import ThreadEntry
from opdump.adapters.torch.compiled import CompiledRegions
from opdump.adapters.torch.mode_stack import recording_here, take_off
from tests.torch.recording import Operators

backward: Any = torch.autograd.backward
X = torch.linspace(-1, 1, 4)


class Capture:
    """A recording mode, and the hooks that turn it on in threads."""

    def __init__(self) -> None:
        self.operators = Operators()
        self.entry = ThreadEntry(self.operators.on)

    @property
    def names(self) -> list[str]:
        return self.operators.names

    @contextmanager
    def attached(self) -> Iterator[None]:
        self.entry.attach()
        try:
            yield
        finally:
            self.entry.detach()
            self.operators.recording = False


@pytest.fixture
def capture() -> Iterator[Capture]:
    capture = Capture()
    with capture.attached():
        yield capture


def run(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def test_a_thread_with_a_target_enters(capture: Capture) -> None:
    run(threading.Thread(target=torch.sin, args=(X,), name="worker"))
    assert [(o.name, o.thread) for o in capture.operators.all] == [("aten.sin.default", "worker")]


def test_a_thread_class_that_overrides_run_enters(capture: Capture) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            self.result = X.sin()

    worker = Worker()
    run(worker)
    assert capture.names == ["aten.sin.default"]
    assert torch.equal(worker.result, X.sin())
    assert "run" not in vars(worker)


def test_a_timer_enters(capture: Capture) -> None:
    run(threading.Timer(0.0, X.sin))
    assert capture.names == ["aten.sin.default"]


def test_a_pool_made_before_capture_enters_with_each_call() -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()
        capture = Capture()
        with capture.attached():
            assert torch.equal(pool.submit(torch.sin, X).result(), X.sin())
            assert len(list(pool.map(torch.cos, [X, X]))) == 2
        pool.submit(torch.tan, X).result()
        assert pool.submit(torch._C._len_torch_dispatch_stack).result() == 0
    assert capture.names == ["aten.sin.default", "aten.cos.default", "aten.cos.default"]


def test_a_pool_made_under_capture_enters_once(capture: Capture) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch._C._len_torch_dispatch_stack).result() == 1
    with ThreadPool(1) as older:
        assert older.apply(torch._C._len_torch_dispatch_stack) == 1


def test_asyncio_threads_enter(capture: Capture) -> None:
    assert torch.equal(asyncio.run(asyncio.to_thread(torch.sin, X)), X.sin())
    assert capture.names == ["aten.sin.default"]


def test_keyword_arguments_reach_the_function(capture: Capture) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(torch.full, (2,), fill_value=3.0).result()
    assert found.tolist() == [3.0, 3.0]


def test_an_exception_in_a_pool_reaches_its_caller(capture: Capture) -> None:
    def fail() -> None:
        X.sin()
        raise LookupError("mine")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(LookupError, match="mine"):
            pool.submit(fail).result()
        assert pool.submit(torch._C._len_torch_dispatch_stack).result() == 1
        pool.submit(X.cos).result()
    assert capture.names == ["aten.sin.default", "aten.cos.default"]


def test_an_exception_in_a_thread_reaches_the_hook(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: caught.append(args.exc_type))

    def fail() -> None:
        raise LookupError

    run(threading.Thread(target=fail))
    assert caught == [LookupError]


def test_starting_a_thread_twice_is_the_same_error(capture: Capture) -> None:
    thread = threading.Thread(target=X.sin)
    run(thread)
    with pytest.raises(RuntimeError, match="once"):
        thread.start()
    assert "run" not in vars(thread)


def test_a_thread_started_between_dumped_steps_records_in_the_next(capture: Capture) -> None:
    work: Queue[Callable[[], Any] | None] = Queue()
    done: Queue[None] = Queue()

    def serve() -> None:
        while (function := work.get()) is not None:
            function()
            done.put(None)

    capture.operators.recording = False
    thread = threading.Thread(target=serve)
    thread.start()
    for wanted in (False, True, False, True):
        capture.operators.recording = wanted
        work.put(X.sin)
        done.get(timeout=900)
    work.put(None)
    thread.join()
    assert capture.names == ["aten.sin.default"] * 2


def test_a_thread_that_outlives_capture_records_nothing_more() -> None:
    capture = Capture()
    go, ended = threading.Event(), threading.Event()
    results = []

    def work() -> None:
        results.append(X.sin())
        ended.set()
        go.wait(60)
        results.append(X.cos())

    with capture.attached():
        thread = threading.Thread(target=work)
        thread.start()
        ended.wait(60)
    go.set()
    thread.join()
    assert capture.names == ["aten.sin.default"]
    assert torch.equal(results[1], X.cos())


def test_detach_puts_everything_back() -> None:
    before = (threading.Thread.start, ThreadPoolExecutor.submit)
    capture = Capture()
    with capture.attached():
        capture.entry.attach()
        assert (threading.Thread.start, ThreadPoolExecutor.submit) != before
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == before
    run(threading.Thread(target=X.sin))
    assert capture.names == []


def test_backward_runs_in_the_thread_that_calls_it(capture: Capture) -> None:
    w = torch.ones(4, requires_grad=True)
    with capture.operators.on():
        backward(w.sin().sum())
    main = [o for o in capture.operators.all if "cos" in o.name]
    assert [o.thread for o in main] == [threading.current_thread().name]
    capture.operators.all.clear()
    run(threading.Thread(target=lambda: backward(w.sin().sum()), name="worker"))
    assert {o.thread for o in capture.operators.all} == {"worker"}
    assert "aten.cos.default" in capture.names


def test_deep_checkpoints_stay_visible(capture: Capture) -> None:
    # After 60 nested backward passes, autograd switches to a thread of its own pool, and takes the modes along.
    def nested(x: torch.Tensor, levels: int) -> torch.Tensor:
        if levels == 0:
            return x.sin()
        return checkpoint(nested, x, levels - 1, use_reentrant=True)  # type: ignore[no-any-return]

    x = torch.ones(2, requires_grad=True)
    with capture.operators.on():
        backward(nested(x, 70).sum())
    cosines = [o for o in capture.operators.all if o.name == "aten.cos.default"]
    assert len(cosines) == 1
    assert cosines[0].thread != threading.current_thread().name


def test_a_run_that_another_tool_put_on_the_object_stays_in_charge(capture: Capture) -> None:
    order = []
    thread = threading.Thread(target=X.sin)
    original = thread.run

    def run_of_another_tool() -> None:
        order.append("before")
        original()

    thread.run = run_of_another_tool  # type: ignore[method-assign]
    entry = ThreadEntry(capture.operators.on)
    entry.attach()
    run(thread)
    entry.detach()
    assert thread.run is run_of_another_tool
    assert order == ["before"]
    assert capture.names == ["aten.sin.default"]


def test_a_compiled_function_in_a_thread_is_one_operator(capture: Capture) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    compiled(X)
    regions = CompiledRegions(capture.operators.run_as_one)
    regions.attach()
    try:
        run(threading.Thread(target=compiled, args=(X,)))
        capture.operators.recording = False
        run(threading.Thread(target=compiled, args=(X,)))
    finally:
        regions.detach()
        torch._dynamo.reset()
    assert capture.names == ["compiled_lambda"]


def test_two_threads_that_leave_in_another_order_leave_nothing_behind(capture: Capture) -> None:
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        first_in.set()
        second_in.wait(60)

    def second() -> None:
        first_in.wait(60)
        second_in.set()
        first_out.wait(60)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    threads[0].join()
    first_out.set()
    threads[1].join()
    assert not torch.utils._python_dispatch.is_in_torch_dispatch_mode()
    assert torch._C._len_torch_dispatch_stack() == 0


# --- threads and processes that do not record -------------------------------------------------------------------------


class Waves(Dataset[torch.Tensor]):
    """Each item contains whether it was made under a recording mode."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        threading.Thread(target=torch.sin, args=(X,)).start()
        return torch.tensor([float(index), float(recording_here()), float(torch._C._len_torch_dispatch_stack())])


@pytest.mark.skipif(sys.platform == "win32", reason="never: Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_data_loader_workers_do_not_record(capture: Capture) -> None:
    def leave() -> None:
        take_off(capture.operators)

    entry = ThreadEntry(capture.operators.on, forked=leave)
    entry.attach()
    try:
        with capture.operators.on():
            batches = list(DataLoader(Waves(), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    finally:
        entry.detach()
    assert torch.cat(batches).tolist() == [[float(i), 0.0, 0.0] for i in range(4)]
    assert "aten.sin.default" not in capture.names


@pytest.mark.skipif(not hasattr(os, "fork"), reason="never: Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_hooks(capture: Capture) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(capture.entry._attached).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"False"
    run(threading.Thread(target=X.sin))
    assert capture.names == ["aten.sin.default"]


def test_the_pin_memory_thread_does_not_enter(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.pin_memory import _pin_memory_loop

    depths = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is _pin_memory_loop.__code__:
            depths.append(torch._C._len_torch_dispatch_stack())

    # Without an accelerator, the loop ends at once with an error.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    threading.setprofile(watch)
    try:
        run(threading.Thread(target=_pin_memory_loop, args=(None, None, None, threading.Event(), None)))
    finally:
        threading.setprofile(None)
    assert depths == [0]


# --- whole captures -----------------------------------------------------------------------------------------------------


def test_a_dump_holds_what_threads_ran(tmp_path: Path) -> None:
    results = []
    with ThreadPoolExecutor(2) as pool, opdump.capture(path=tmp_path, saved_data="full", iteration="0"):
        run(threading.Thread(target=lambda: results.append(X.sin())))
        results.append(pool.submit(torch.cos, X).result())
    outputs = {
        record.op.kernel: record.payload.to_host()
        for record in opdump.open(tmp_path)
        if record.io == "output" and record.payload is not None
    }
    assert outputs.keys() == {"aten::sin", "aten::cos"}
    assert outputs["aten::sin"].tolist() == results[0].tolist() == X.sin().tolist()
    assert outputs["aten::cos"].tolist() == results[1].tolist() == X.cos().tolist()


def test_many_threads_at_once_lose_no_operator(tmp_path: Path) -> None:
    def work(count: int) -> None:
        for _ in range(count):
            X.sin()

    with opdump.capture(path=tmp_path, saved_data="full", iteration="0") as dump:
        threads = [threading.Thread(target=work, args=(50,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert dump.report is not None
    assert dump.report.captured == 200
    ops = [op for op in opdump.open(tmp_path).ops() if op.kernel == "aten::sin"]
    assert len({(op.op_name, op.occurrence) for op in ops}) == 200
    assert len({op.timestamp for op in ops}) == 200


@pytest.mark.skipif(sys.platform == "win32", reason="never: Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_dump_with_forked_workers_is_complete(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", iteration="0") as dump:
        loader = DataLoader(Waves(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        batches = [batch.square() for batch in loader]
    assert torch.cat(batches)[:, 1:].tolist() == [[0.0, 0.0]] * 4
    assert dump.report is not None
    kernels = [op.kernel for op in opdump.open(tmp_path).ops()]
    assert kernels.count("aten::pow.Tensor_Scalar") == 2
    assert "aten::sin" not in kernels


def test_a_network_called_in_a_thread_from_before_the_capture_is_reported(tmp_path: Path) -> None:
    work: Queue[Any] = Queue()
    done: Queue[Any] = Queue()
    net = torch.nn.Linear(2, 1)

    def serve() -> None:
        while (x := work.get()) is not None:
            done.put(net(x))

    thread = threading.Thread(target=serve)
    thread.start()
    x = torch.ones(1, 2)
    try:
        with opdump.capture(path=tmp_path) as dump:
            work.put(x)
            done.get()
    finally:
        work.put(None)
        thread.join()
    assert dump.report is not None
    assert any("networks were called 1 times in threads" in text for text in dump.report.warnings)
