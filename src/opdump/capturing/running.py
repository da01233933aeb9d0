"""A capture while it runs: its files are opened, the adapter is attached, and both are closed in the other order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from opdump.adapters.base import Adapter, DumpComplete, Settings
from opdump.capturing.children.place import Place
from opdump.capturing.dump import CaptureParts, Dump
from opdump.capturing.late_writer import LateWriter
from opdump.capturing.process_state import STATE
from opdump.capturing.recording import Recording
from opdump.capturing.starts import follow_starts
from opdump.plan import DumpPlan

_LOG = logging.getLogger("opdump")


@contextmanager
def running(adapter: Adapter, plan: DumpPlan, options: Settings, place: Place) -> Iterator[Dump]:
    """The one capture of this process, while the block runs."""
    follow_starts()
    with ExitStack() as stack:
        STATE.begin(stack)
        dump = _open(stack, adapter, plan, options, place)
        with suppress(DumpComplete):  # the program was asked to end here
            yield dump


def _open(stack: ExitStack, adapter: Adapter, plan: DumpPlan, options: Settings, place: Place) -> Dump:
    for text in plan.warnings:
        _LOG.warning("%s", text)
    recording = Recording(plan, options.rank_id, adapter, place.writer)
    writer = recording.writer
    if isinstance(writer, LateWriter):
        recording.recorder.wait_for_place(lambda: place.settled(writer))
    parts = CaptureParts(recording, place, options.marks)
    dump = Dump(parts, stack)
    parts.controller = stack.enter_context(adapter.attach(recording.recorder, options))
    STATE.dump, STATE.parts = dump, parts
    return dump
