"""Files the elements of operators that are followed: they are copied in compiled code, small ones together, and named here.

A run of followed operators is handed over when somebody asks for it (`Following.gather`); elements do not wait that long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opdump.adapters.torch.lesson import Event, Kind
from opdump.adapters.torch.memory import widened
from opdump.recorder import Recorder, TensorSnapshot
from opdump.records import HostPayload, OpRecord, TensorRecord
from opdump.step_columns import ran

_Slot = tuple[int, Event, TensorSnapshot]
"""The place of an operator in a run, what is known of it, and of one of its tensors."""


class FollowedElements:
    """Those of the run that goes on."""

    def __init__(self, recorder: Recorder, follower: Any) -> None:
        self._recorder = recorder
        self._follower = follower
        self._slots: Iterator[_Slot] | None = None
        self._timestamps: list[int] = []
        self._files: list[str | None] = []
        self._op: OpRecord | None = None
        self._place = -1
        """Of that operator."""

    def file(self, events: Sequence[Event]) -> None:
        """Files what the follower has of the tensors of these events and was not filed yet."""
        first, step, timestamps, addresses = self._follower.take_elements()
        self._timestamps += timestamps
        if self._slots is None:
            self._slots = _slots_of(events, first)
        for address, (place, event, known) in zip(addresses, self._slots, strict=False):  # no slot more than is needed
            self._files.append(self._filed(address, place, event, known, step) if address else None)

    def end_run(self, events: Sequence[Event]) -> list[str | None]:
        """Files the rest; where the elements of each tensor of the run are."""
        self.file(events)
        files = self._files
        self._slots, self._timestamps, self._files, self._op, self._place = None, [], [], None, -1
        return files

    def _filed(self, address: int, place: int, event: Event, known: TensorSnapshot, step: int) -> str | None:
        if self._op is None or self._place != place:
            assert event.op is not None
            self._op, self._place = ran(event.op, self._timestamps[place], step, event.op.arguments), place
        is_wide = known.dtype == "bfloat16"
        memory = (ctypes.c_char * known.data_size).from_address(address)
        array: Any = np.ndarray(known.shape, np.uint16 if is_wide else known.dtype, memoryview(memory))
        if is_wide:
            array = widened(array)
        record = TensorRecord(
            op=self._op,
            io=known.io,
            slot=known.slot,
            dtype=known.dtype,
            shape=known.shape,
            payload=HostPayload(array),
            argument=known.argument,
            source=known.source,
            data_size=known.data_size,
            memory=known.memory,
        )
        return self._recorder.file_elements(record, array.nbytes)


def _slots_of(events: Sequence[Event], first: int) -> Iterator[_Slot]:
    """As `Lesson.pattern` has them."""
    place = 0
    for number in range(first, len(events)):
        event = events[number]
        if event.op is None or event.kind is Kind.OTHER:
            continue
        for known in event.tensors:
            yield place, event, known
        place += 1
