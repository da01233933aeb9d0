"""Runs the captures of a process: which processes are captured, in which framework, and how a capture begins and ends."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

from opdump.adapters.base import Adapter, DumpComplete, Settings, SupportsBeside, SupportsForks
from opdump.adapters.program_marks import ModelNames, ProgramMarks
from opdump.adapters.registry import BESIDE, FRAMEWORKS
from opdump.capturing.dump import CaptureParts, Dump, Recording
from opdump.capturing.family import FAMILY_VARIABLE, Family, call_at_end, family_facts, role_here, when_it_has_its_work
from opdump.capturing.rank_assignment import DeferredWriter, RankAssignment, family_of, new_token, rank_of
from opdump.capturing.report import told_elsewhere
from opdump.errors import ConfigError, FrameworkMissingError, OpdumpError
from opdump.interpreter.frames import printed_as_the_programs, strip
from opdump.interpreter.process_starts import Start, watch_starts
from opdump.plan import DumpPlan
from opdump.plan.field_types import shown
from opdump.protobuf_messages import load_protobuf
from opdump.recorder import Recorder

# The capture of this process, and the marks and model names that the program has set.


class ProcessState:
    """The state of this process that concerns captures."""

    def __init__(self) -> None:
        self.running: ExitStack | None = None
        """Ends the running capture."""
        self.dump: Dump | None = None
        self.parts: CaptureParts | None = None
        self.awaiting: Family | None = None
        """The family of a program that has not imported a framework yet."""
        self.end_child: Callable[[], None] | None = None
        """Ends the capture of this process if it began because its parent is captured."""
        self.started: list[AbstractContextManager[Dump]] = []
        """Captures begun by `start`, for `stop`: at most one."""
        self.captured = False
        self.watches_starts = False
        self.marks = ProgramMarks()
        self.model_names = ModelNames()
        self.numbers: Iterator[int] = itertools.count()
        """Numbers for watched tensors without a name."""
        self.inherited: list[Any] = []
        """The parts of the parent's capture that a forked process inherited. They are kept alive, because their destruction would end it."""

    @property
    def controller(self) -> object:
        """The controller of the running capture, or None."""
        return None if self.parts is None else self.parts.controller

    def begin(self, stack: ExitStack) -> None:
        """Register a capture that ends when `stack` is closed."""
        self.captured = True
        self.running = stack
        stack.callback(self._end, stack)

    def _end(self, stack: ExitStack) -> None:
        if self.running is not stack:
            return  # a forked process leaves a block of its parent
        self.running = self.dump = self.parts = None
        self.numbers = itertools.count()

    def forked(self) -> None:
        self.inherited += [self.running, self.dump, self.end_child, *self.started]
        self.running = self.dump = self.parts = self.end_child = self.awaiting = None
        self.started.clear()


# The interpreter has one stack of dispatch modes, so a process has one capture.
STATE: Final = ProcessState()


# Chooses the framework of a capture: the requested one, or the imported one.

_LOG = logging.getLogger("opdump")


def chosen_framework(asked: str, imported: Collection[str]) -> str:
    """Return the framework to capture: the requested one or, for "auto", the imported one (PyTorch if there is none).

    Raises ConfigError for an unknown name.
    """
    known = FRAMEWORKS.names()
    if asked != "auto":
        if asked not in known:
            expected = ", ".join(f'"{name}"' for name in ("auto", *known[:-1]))
            raise ConfigError(f'framework is {shown(asked)}, expected {expected} or "{known[-1]}"')
        return asked
    found = [name for name in known if name in imported]
    found = [name for name in found if name not in BESIDE] or found
    if len(found) > 1:
        both = "both " if len(found) == 2 else ""
        _LOG.warning(
            f"{both}{' and '.join(found)} are imported; {found[0]} is captured. "
            f'For the other: opdump.capture(..., framework="{found[1]}")'
        )
    return found[0] if found else "torch"


def adapter_of(name: str) -> Adapter:
    """Import and return the adapter of a framework. Raises FrameworkMissingError if the framework is not installed."""
    try:
        return FRAMEWORKS.load(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FrameworkMissingError(
            f"capture needs {name}, which is not installed here; run: pip install {name} (not needed to read dumps)"
        ) from None


# Fires the triggers that do not come from the recorder, exceptions and SIGUSR1, to write the steps kept in memory (`ring`).


@contextmanager
def triggers(recorder: Recorder) -> Iterator[None]:
    """During the block, fire at the signal and at an exception that ends the block. Without steps in memory, do nothing."""
    plan = recorder.plan
    if not plan.ring:
        yield
        return
    with _signal(recorder) if "signal" in plan.triggers else nullcontext():
        try:
            yield
        except DumpComplete:
            raise
        except BaseException as error:
            # `sys.exit()` at the end of a program is not a failure.
            if "exception" in plan.triggers and not (isinstance(error, SystemExit) and not error.code):
                recorder.fire(f"exception: {type(error).__name__}")
            raise


@contextmanager
def _signal(recorder: Recorder) -> Iterator[None]:
    if not hasattr(signal, "SIGUSR1"):
        yield
        return
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    ):
        _LOG.warning(
            "SIGUSR1 triggers nothing: the program has its own handler, or the capture did not begin in the main thread"
        )
        yield
        return

    def fire(_number: int, _frame: FrameType | None) -> None:
        recorder.fire("signal")

    signal.signal(signal.SIGUSR1, fire)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGUSR1) is fire:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)


# Runs a capture: opens its files, attaches the adapter, and closes both in reverse order. It follows processes that the program starts, and ends if
# another program replaces this one (`os.exec`).


@contextmanager
def running(adapter: Adapter, plan: DumpPlan, options: Settings, place: RankAssignment) -> Iterator[Dump]:
    """Run the capture of this process during the block."""
    _follow_starts()
    with ExitStack() as stack, _stripped_errors(), printed_as_the_programs():
        STATE.begin(stack)
        dump = _open(stack, adapter, plan, options, place)
        assert STATE.parts is not None, "it was opened"
        with (
            suppress(DumpComplete),
            triggers(STATE.parts.recording.recorder),
        ):  # DumpComplete: the program was asked to end here
            yield dump


@contextmanager
def _stripped_errors() -> Iterator[None]:
    """Remove opdump's frames from an error that leaves the block. It is printed after the end of the capture, when that is no longer possible."""
    try:
        yield
    except BaseException as error:
        strip(error)
        raise


def _open(stack: ExitStack, adapter: Adapter, plan: DumpPlan, options: Settings, place: RankAssignment) -> Dump:
    for text in plan.warnings:
        _LOG.warning("%s", text)
    recording = Recording(plan, options.rank_id, adapter, place.writer)
    if plan.max_disk is not None:
        recording.bytes_of_others = place.shared_bytes(recording.own_bytes).of_others
    writer = recording.writer
    if isinstance(writer, DeferredWriter):
        recording.recorder.wait_for_place(lambda: place.settled(writer))
    parts = CaptureParts(recording, place, options.marks)
    dump = Dump(parts, stack)
    load_protobuf()
    parts.controller = stack.enter_context(adapter.attach(recording.recorder, options))
    for beside in _beside(adapter):
        stack.enter_context(beside.attach_beside(recording.recorder, options, parts.controller))
    STATE.dump, STATE.parts = dump, parts
    return dump


def _beside(adapter: Adapter) -> Iterator[SupportsBeside]:
    """Return the adapters of installed frameworks that are captured together with that of `adapter`."""
    for name in BESIDE:
        if name != adapter.framework and find_spec(name) is not None:
            other = adapter_of(name)
            if isinstance(other, SupportsBeside):
                yield other


def _follow_starts() -> None:
    """Notify the running capture of each process before it starts."""
    if not STATE.watches_starts:
        STATE.watches_starts = True
        watch_starts(_starts)


def _starts(start: Start) -> None:
    """Handle a process that is about to start or to replace this one."""
    dump, parts = STATE.dump, STATE.parts
    if dump is None or parts is None or os.getpid() != parts.process:
        return
    parts.place.starts(start)
    if start.kind != "replaced" or not _is_executable(start.file):
        return
    if STATE.end_child is not None:
        STATE.end_child()
    else:
        _end_before(start, dump, parts.place)


def _is_executable(file: str) -> bool:
    """Return whether the system would execute the file; a search for a program tries several paths."""
    return not file or (os.path.isfile(file) and os.access(file, os.X_OK))


def _end_before(start: Start, dump: Dump, place: RankAssignment) -> None:
    """End the capture of the first process, which is about to become another program."""
    assert STATE.running is not None, "it has a dump"
    STATE.running.close()
    os.environ.pop(FAMILY_VARIABLE, None)
    place.family.end()
    if dump.report is not None:
        command = " ".join(start.command[:6]) + (" ..." if len(start.command) > 6 else "")
        text = (
            f"this process became another program (os.exec): {command}; its operators are not in this report, and are captured as "
            "a separate run if OPDUMP_START asks for it"
        )
        dump.report = replace(dump.report, warnings=(*dump.report.warnings, text))
        dump.when_replaced(dump.report)


# Captures the first process, and the processes that it starts or forks.


@contextmanager
def first_process(
    framework: str, adapter: Adapter, plan: DumpPlan, options: Settings, *, known: bool, children: bool
) -> Iterator[Dump]:
    """Capture the first process of a run during the block. `known`: the rank in `options` is final."""
    facts = family_facts(
        framework=framework, eager=options.eager, steps=options.steps, rank=options.rank_id, captured=children
    )
    with family_of(plan, facts, STATE.awaiting) as family:
        place = RankAssignment(family, adapter, options.rank_id, known=known, is_first=True)
        with running(adapter, plan, options, place) as dump:
            yield dump


@contextmanager
def awaiting_children(plan: DumpPlan, *, framework: str, eager: bool, children: bool) -> Iterator[Family]:
    """Capture the processes that this one starts, while it has imported no framework itself.

    `framework` is "" for the one that they import. If a capture begins here within the block, it joins them.
    """
    rank = rank_of(os.environ)
    facts = family_facts(framework=framework, eager=eager, steps="auto", rank=rank, captured=children)
    with family_of(plan, facts) as family:
        STATE.awaiting = family
        try:
            yield family
        finally:
            STATE.awaiting = None


_OTHERS: Final = frozenset({"torch", "tensorflow"})
"""Frameworks that are not captured beside another one."""
_OTHER: Final = "other"
"""The token of the note by a process that has only imported a different framework so far."""


class _Child:
    """The capture of a process that was started under capture."""

    def __init__(self, family: Family, place: RankAssignment, manager: AbstractContextManager[Dump]) -> None:
        self._family = family
        self._place = place
        self._manager = manager
        self._process = os.getpid()
        self._loaded = frozenset(_OTHERS & sys.modules.keys())
        """Frameworks imported before; a forked process has those of its parent."""

    def end(self) -> None:
        """Write what was recorded and report it: once, and not in a process forked from this one."""
        if STATE.end_child != self.end or os.getpid() != self._process:
            return
        STATE.end_child = None
        dump = STATE.dump
        self._manager.__exit__(None, None, None)
        others = (_OTHERS & sys.modules.keys()) - self._loaded - {self._place.framework}
        if others and dump is not None and dump.report is not None and not dump.report.executed:
            reason = f"they import {' and '.join(sorted(others))} and ran nothing of {self._place.framework}, which this run captures"
            self._place.leave_out(reason)


def begin_child(family: Family, framework: str) -> None:
    """Capture this process, which was started under capture, until it ends. An error is printed, and the program continues."""
    try:
        _begin_child(family, framework)
    except OpdumpError as error:
        _not_captured(family, str(error))
    except Exception as error:  # noqa: BLE001  the caller ignores errors
        traceback.print_exc()
        _not_captured(family, f"{type(error).__name__}: {error}; the error comes from opdump, please report it")


def _not_captured(family: Family, reason: str) -> None:
    print(f"opdump: error: process {os.getpid()} is not captured: {reason}", file=sys.stderr)  # noqa: T201  independent of the program's logging
    family.note(new_token(), {"end": "not captured", "reason": reason})


def _leave_out(family: Family, reason: str, token: str = "") -> None:
    """Count this process as not captured if it does work of the program."""
    if role_here() == "program":
        family.note(token or new_token(), {"end": "not captured", "reason": reason})


def leave_out_for(family: Family, framework: str) -> None:
    """Count this process, which has imported a different framework than the captured one, until it imports that one too."""
    if STATE.running is None:
        wanted = family.facts["framework"]
        _leave_out(family, f"they import {framework}, and this run captures {wanted}: choose with --framework", _OTHER)


def _begin_child(family: Family, framework: str) -> None:
    if STATE.running is not None or role_here() != "program":
        return
    facts = family.facts
    family.take_back(_OTHER)
    if not facts["captured"]:
        _leave_out(family, "children are left out")
        return
    adapter = adapter_of(framework)
    launched = os.environ.get("RANK", "")
    rank = int(launched) if launched.isdecimal() and launched != facts["launched_as"] else None
    place = RankAssignment(family, adapter, rank, known=rank is not None, is_first=False)
    options = Settings(
        rank_id=place.rank,
        eager=bool(facts["eager"]),
        steps=facts["steps"],
        marks=STATE.marks,
        model_names=STATE.model_names,
    )
    manager = running(adapter, replace(family.plan, warnings=()), options, place)
    dump = manager.__enter__()
    dump.when_ended = told_elsewhere  # the first process reports it
    assert STATE.parts is not None, "the capture runs"
    recording = STATE.parts.recording
    recording.recorder.when_filed = lambda: place.filed(recording.recorder, recording.sink)
    STATE.end_child = _Child(family, place, manager).end
    call_at_end(STATE.end_child)
    # Not earlier: a pool worker that ends before its work begins has run nothing and is not a lost process.
    place.begun()


def _forked() -> None:
    """In a forked process: leave the capture to the parent, and begin a new one for this process."""
    if STATE.running is None:
        return
    parts = STATE.parts
    STATE.forked()
    if parts is None or not isinstance(parts.controller, SupportsForks):
        return
    obstacle = parts.controller.abandon()
    family, framework = parts.place.family, parts.place.framework
    when_it_has_its_work(lambda: _leave_out(family, obstacle) if obstacle else begin_child(family, framework))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
