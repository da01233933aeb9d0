"""Ctrl-C is deferred within some functions; its handler is called afterwards, and works as before."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opdump.interpreter.critical_sections import compiled, not_interrupted

pytestmark = pytest.mark.skipif(compiled() is None, reason="Ctrl-C is deferred only by compiled code")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def strike() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_has_begun_is_done_before_ctrl_c_comes() -> None:
    done: list[int] = []

    @not_interrupted
    def both() -> None:
        done.append(1)
        strike()
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        both()
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_second_one_does_not_wait(depth: int) -> None:
    done: list[int] = []

    def struck_twice() -> None:
        strike()
        done.append(1)
        strike()
        done.append(2)

    function: Callable[[], None] = struck_twice
    for _ in range(depth):
        function = not_interrupted(function)
    with pytest.raises(KeyboardInterrupt):
        function()
    assert done == [1]
    with pytest.raises(KeyboardInterrupt):
        strike()


def test_one_within_another_waits_for_the_outer_one() -> None:
    done: list[str] = []

    @not_interrupted
    def inner() -> None:
        strike()
        done.append("inner")

    @not_interrupted
    def outer() -> None:
        inner()
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert done == ["inner", "outer"]


def test_an_error_of_the_function_does_not_hide_ctrl_c() -> None:
    @not_interrupted
    def fails() -> None:
        strike()
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        fails()


def test_the_value_of_the_function_is_given_and_a_handler_that_raises_nothing_is_called_once() -> None:
    told: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))

    @not_interrupted
    def value() -> int:
        strike()
        return 7

    assert value() == 7
    assert told == [signal.SIGINT]


def test_ignored_ctrl_c_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    @not_interrupted
    def struck() -> int:
        strike()
        strike()
        return 7

    assert struck() == 7
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_is_not_pythons_is_kept_and_called() -> None:
    library = ctypes.CDLL(None)
    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    told: list[int] = []
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(told.append)
    before = library.signal(signal.SIGINT, ctypes.cast(handler, ctypes.c_void_p))

    @not_interrupted
    def struck() -> list[int]:
        strike()
        return [*told]

    try:
        assert struck() == []
        assert told == [signal.SIGINT]
        strike()
        assert told == [signal.SIGINT, signal.SIGINT]
    finally:
        library.signal(signal.SIGINT, before)


def test_a_handler_that_is_installed_meanwhile_stays_and_is_reported() -> None:
    told: list[int] = []

    def later(number: int, _: Any) -> None:
        told.append(number)

    @not_interrupted
    def install() -> None:
        strike()
        signal.signal(signal.SIGINT, later)

    install()
    assert told == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is later


def test_in_another_thread_nothing_waits() -> None:
    told: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    entered, struck = threading.Event(), threading.Event()

    @not_interrupted
    def waits() -> bool:
        entered.set()
        return struck.wait(30)

    thread = threading.Thread(target=waits)
    thread.start()
    assert entered.wait(30)
    strike()
    assert told == [signal.SIGINT]
    struck.set()
    thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_another_thread_forks_meanwhile_is_reported_at_once() -> None:
    begun, ended = threading.Event(), threading.Event()
    status: list[int] = []

    def fork() -> None:
        begun.wait(30)
        process = os.fork()
        if process == 0:
            try:
                strike()
                os._exit(1)
            except KeyboardInterrupt:
                os._exit(0)
        status.append(os.waitpid(process, 0)[1])
        ended.set()

    thread = threading.Thread(target=fork)
    thread.start()

    @not_interrupted
    def waits() -> bool:
        begun.set()
        return ended.wait(30)

    assert waits()
    thread.join()
    assert status == [0]
