"""Which processes are captured, and how: the first one, those that it starts or forks, and a program that leaves all work to these."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final

from opdump.adapters.base import Adapter, Settings, SupportsForks
from opdump.capturing.children import Family, role_here
from opdump.capturing.children.ends import call_at_end, when_it_has_its_work
from opdump.capturing.children.family import family_facts
from opdump.capturing.children.place import Place, family_of, new_token, rank_of
from opdump.capturing.dump import Dump
from opdump.capturing.frameworks import adapter_of
from opdump.capturing.process_state import STATE
from opdump.capturing.report import told_elsewhere
from opdump.capturing.running import running
from opdump.errors import OpdumpError
from opdump.plan import DumpPlan


@contextmanager
def first_process(
    framework: str, adapter: Adapter, plan: DumpPlan, options: Settings, *, known: bool, children: bool
) -> Iterator[Dump]:
    """Capture the first process of a run during the block. `known`: the rank in `options` is final."""
    facts = family_facts(
        framework=framework, eager=options.eager, steps=options.steps, rank=options.rank_id, captured=children
    )
    with family_of(plan, facts, STATE.awaiting) as family:
        place = Place(family, adapter, options.rank_id, known=known, is_first=True)
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


_OTHERS: Final = frozenset({"torch", "tensorflow", "onnxruntime"})
_OTHER: Final = "other"
"""The token of the note of a process that has only imported another framework so far."""


class _Child:
    """The capture of a process that was started under capture."""

    def __init__(self, family: Family, place: Place, manager: AbstractContextManager[Dump]) -> None:
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
    """Capture this process, which was started under capture, until it ends. An error is printed, and the program goes on."""
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
    place = Place(family, adapter, rank, known=rank is not None, is_first=False)
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
    # Only now: a pool worker that ended before its work began ran nothing, and is not a lost process.
    place.begun()


def _forked() -> None:
    """In a forked process: leave the capture to the parent, and begin another one for the work of this process."""
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
