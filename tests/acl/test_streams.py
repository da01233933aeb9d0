"""Contexts of threads, streams, events and callbacks: arguments, results and return codes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from opdump import acl
from opdump.acl import Code
from tests.acl.program import ok

FOREVER = -1


def _in_a_thread(function: Callable[[], Any]) -> Any:
    """The result of calling a function in a new thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


# ------------------------------------------------------------------------------------------------------------- contexts


def test_a_thread_without_a_context_gets_an_error_with_the_call_that_makes_one() -> None:
    assert acl.rt.get_context() == (0, Code.CONTEXT_NULL) == (0, 107002)
    assert "acl.rt.set_device" in acl.get_recent_err_msg()


def test_set_device_gives_the_default_context_of_the_device() -> None:
    ok(acl.rt.set_device(0))
    first = ok(acl.rt.get_context())
    assert ok(acl.rt.get_context(0)) == first, "programs pass a number, which is ignored"
    ok(acl.rt.set_device(0))
    assert ok(acl.rt.get_context()) == first
    ok(acl.rt.reset_device(0))
    assert acl.rt.get_context() == (0, Code.CONTEXT_NULL)
    assert acl.rt.set_context(first) == Code.INVALID_PARAM


def test_a_new_context_is_the_current_one() -> None:
    ok(acl.rt.set_device(0))
    default = ok(acl.rt.get_context())
    own = ok(acl.rt.create_context(0))
    assert ok(acl.rt.get_context()) == own != default
    ok(acl.rt.set_context(default))
    assert ok(acl.rt.get_context()) == default
    ok(acl.rt.destroy_context(own))
    assert ok(acl.rt.get_context()) == default
    assert acl.rt.destroy_context(own) == Code.INVALID_PARAM


def test_every_thread_has_a_context_of_its_own() -> None:
    own = ok(acl.rt.create_context(0))
    assert _in_a_thread(acl.rt.get_context) == (0, Code.CONTEXT_NULL)
    assert _in_a_thread(lambda: (acl.rt.set_context(own), acl.rt.get_context())) == (0, (own, 0))
    assert _in_a_thread(lambda: (acl.rt.set_device(0), ok(acl.rt.get_context()) == own)) == (0, False)
    assert ok(acl.rt.get_context()) == own


def test_a_device_that_does_not_exist() -> None:
    for call in (acl.rt.set_device, acl.rt.reset_device, acl.rt.reset_device_force):
        assert call(3) == Code.INVALID_DEVICE_ID
    assert acl.rt.create_context(3) == (0, Code.INVALID_DEVICE_ID)


def test_each_thread_has_the_message_of_its_own_calls() -> None:
    assert acl.rt.set_device(3) == Code.INVALID_DEVICE_ID
    assert _in_a_thread(acl.get_recent_err_msg) == ""
    assert "the only device is 0" in acl.get_recent_err_msg()


# --------------------------------------------------------------------------------------------------- streams and events


def test_streams_are_made_and_destroyed() -> None:
    stream = ok(acl.rt.create_stream())
    other = ok(acl.rt.create_stream_with_config(0, 1))
    for each in (0, stream, other):
        ok(acl.rt.synchronize_stream(each))
        ok(acl.rt.synchronize_stream_with_timeout(each, 1000))
        assert acl.rt.stream_query(each) == (0, 0)
    ok(acl.rt.synchronize_device())
    ok(acl.rt.destroy_stream(stream))
    ok(acl.rt.destroy_stream_force(other))
    assert acl.rt.synchronize_stream(stream) == Code.INVALID_PARAM
    assert acl.rt.synchronize_stream_with_timeout(0, -2) == Code.INVALID_PARAM
    assert acl.rt.destroy_stream(other) == Code.INVALID_PARAM


@pytest.mark.parametrize(
    "create",
    [acl.rt.create_event, lambda: acl.rt.create_event_with_flag(8), lambda: acl.rt.create_event_ex_with_flag(8)],
)
def test_an_event_is_complete_when_it_is_recorded(create: Callable[[], tuple[int, int]]) -> None:
    event = ok(create())
    assert (acl.rt.query_event(event), acl.rt.query_event_status(event)) == ((1, 0), (0, 0))
    ok(acl.rt.record_event(event, 0))
    assert (acl.rt.query_event(event), acl.rt.query_event_status(event)) == ((0, 0), (1, 0))
    assert acl.rt.query_event_wait_status(event) == (0, 0)
    ok(acl.rt.stream_wait_event(0, event))
    ok(acl.rt.synchronize_event(event))
    ok(acl.rt.synchronize_event_with_timeout(event, FOREVER))
    assert ok(acl.rt.event_get_timestamp(event)) > 0
    ok(acl.rt.reset_event(event, 0))
    assert acl.rt.query_event(event) == (1, 0)
    assert acl.rt.event_get_timestamp(event) == (0, 107006)
    ok(acl.rt.destroy_event(event))
    assert acl.rt.destroy_event(event) == Code.INVALID_PARAM
    assert acl.rt.query_event(event) == (1, Code.INVALID_PARAM)


def test_the_time_between_two_events() -> None:
    first, second = ok(acl.rt.create_event()), ok(acl.rt.create_event())
    ok(acl.rt.record_event(first, 0))
    assert acl.rt.event_elapsed_time(first, second) == (0.0, 107006)
    ok(acl.rt.record_event(second, 0))
    milliseconds = ok(acl.rt.event_elapsed_time(first, second))
    assert milliseconds >= 0
    if milliseconds:
        assert acl.rt.event_elapsed_time(second, first) == (0.0, 107007)


def test_memory_is_set_and_copied_in_a_stream() -> None:
    stream = ok(acl.rt.create_stream())
    one, two = ok(acl.rt.malloc_cached(16, 0)), ok(acl.rt.malloc_align32(16, 0))
    ok(acl.rt.memset_async(one, 16, 258, 4, stream))
    ok(acl.rt.mem_flush(one, 16))
    ok(acl.rt.memcpy_async(two, 16, one, 16, 3, stream))
    ok(acl.rt.mem_invalidate(two, 16))
    assert acl.util.ptr_to_bytes(two, 16) == b"\2" * 4 + bytes(12)
    assert acl.rt.memset_async(one, 16, 0, 17, stream) == Code.INVALID_PARAM
    assert acl.rt.memset_async(one, 16, 0, 16, 5) == Code.INVALID_PARAM
    assert acl.rt.memcpy_async(two, 16, one, 16, 3, 5) == Code.INVALID_PARAM
    assert acl.rt.mem_flush(one, 17) == Code.INVALID_PARAM


# ------------------------------------------------------------------------------------------------------------ callbacks


class _Loop:
    """A thread that processes callbacks until it is stopped, as in sample programs."""

    def __init__(self) -> None:
        self.is_over = False
        self.number, code = acl.util.start_thread(self._run, [5])
        assert code == 0

    def _run(self, arguments: list[int]) -> None:
        while not self.is_over:
            acl.rt.process_report(arguments[0])

    def end(self) -> None:
        self.is_over = True
        assert acl.util.stop_thread(self.number) == 0


@pytest.mark.parametrize("stream_number", ["own", "default"])
def test_callbacks_run_in_their_order_in_the_thread_that_subscribed(stream_number: str) -> None:
    stream = ok(acl.rt.create_stream()) if stream_number == "own" else 0
    loop = _Loop()
    calls: list[tuple[list[int], int]] = []
    ok(acl.rt.subscribe_report(loop.number, stream))
    for number in range(20):
        data = [number]
        ok(acl.rt.launch_callback(lambda data: calls.append((data, threading.get_ident())), data, number % 2, stream))
    ok(acl.rt.synchronize_stream(stream))
    assert calls == [([number], loop.number) for number in range(20)]
    assert acl.rt.stream_query(stream) == (0, 0)
    ok(acl.rt.unsubscribe_report(loop.number, stream))
    loop.end()


def test_a_stream_needs_a_thread_that_has_subscribed() -> None:
    stream = ok(acl.rt.create_stream())
    own = threading.get_ident()
    assert acl.rt.launch_callback(print, [], 1, stream) == 107015
    assert "acl.rt.subscribe_report" in acl.get_recent_err_msg()
    assert acl.rt.unsubscribe_report(own, stream) == 107011
    ok(acl.rt.subscribe_report(own, stream))
    assert acl.rt.subscribe_report(own + 1, stream) == 107011
    assert acl.rt.launch_callback(None, [], 1, stream) == Code.INVALID_PARAM
    assert acl.rt.launch_callback(print, [], 2, stream) == Code.INVALID_PARAM
    assert acl.rt.launch_callback(print, [], 1, 5) == Code.INVALID_PARAM
    ok(acl.rt.unsubscribe_report(own, stream))
    assert acl.rt.launch_callback(print, [], 1, stream) == 107015


def test_a_thread_may_run_the_callbacks_of_its_own_stream() -> None:
    own = threading.get_ident()
    calls: list[list[int]] = []
    ok(acl.rt.subscribe_report(own, 0))
    ok(acl.rt.launch_callback(calls.append, [1], 0, 0))
    assert acl.rt.stream_query(0) == (1, 0)
    assert acl.rt.synchronize_stream(0) == 507012, "no other thread would ever run it"
    assert "process_report" in acl.get_recent_err_msg()
    ok(acl.rt.process_report(FOREVER))
    assert calls == [[1]]
    ok(acl.rt.synchronize_stream(0))
    assert acl.rt.process_report(1) == 507012, "no other callback is waiting"


def test_waiting_for_callbacks_that_never_run_ends() -> None:
    over = threading.Thread(target=int)
    over.start()
    over.join()
    assert over.ident is not None
    ok(acl.rt.subscribe_report(over.ident, 0))
    ok(acl.rt.launch_callback(print, [], 1, 0))
    assert acl.rt.synchronize_stream(0) == 507012
    assert acl.rt.synchronize_device() == 507012
    assert "has ended" in acl.get_recent_err_msg()


def test_a_busy_thread_runs_out_of_time() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def busy(_: object) -> None:
        begun.set()
        may_end.wait()

    loop = _Loop()
    ok(acl.rt.subscribe_report(loop.number, 0))
    ok(acl.rt.launch_callback(busy, None, 1, 0))
    begun.wait()
    assert acl.rt.synchronize_stream_with_timeout(0, 1) == 507046
    may_end.set()
    ok(acl.rt.synchronize_stream_with_timeout(0, FOREVER))
    loop.end()


def test_process_report_without_a_subscription_says_so() -> None:
    assert acl.rt.process_report(1) == 107012
    assert acl.rt.process_report(0) == acl.rt.process_report(-2) == Code.INVALID_PARAM


def test_what_a_callback_raises_leaves_process_report_and_is_raised_by_stop_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: object) -> None:
        raise ValueError("wrong shape")

    reached = threading.Event()
    monitored: list[Any] = []

    def loop(_: object) -> None:
        reached.wait()
        acl.rt.process_report(FOREVER)
        monitored.append("went on")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the interpreter would print it
    thread, _ = acl.util.start_thread(loop, [])
    ok(acl.rt.subscribe_report(thread, 0))
    ok(acl.rt.launch_callback(fails, None, 1, 0))
    reached.set()
    with pytest.raises(RuntimeError, match="ValueError: wrong shape"):
        acl.util.stop_thread(thread)
    assert monitored == []
    ok(acl.rt.synchronize_stream(0))


def test_threads_are_started_with_and_without_an_argument() -> None:
    calls: list[Any] = []
    for function, data in ((calls.append, [1, 2]), (lambda: calls.append("none"), None)):
        thread, code = acl.util.start_thread(function, data)
        assert code == 0
        assert acl.util.stop_thread(thread) == 0
        assert acl.util.stop_thread(thread) == 3, "it was already stopped"
    assert calls == [[1, 2], "none"]
    assert "acl.util.stop_thread" in acl.get_recent_err_msg()
    with pytest.raises(TypeError, match=r"acl\.util\.start_thread"):
        acl.util.start_thread(None, [])  # type: ignore[arg-type]
