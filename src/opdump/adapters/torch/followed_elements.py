"""Writes the elements of followed operators. Compiled code copies them (small tensors together); this module builds their records.

A run of followed operators reaches the recorder only on request (`Following.gather`); elements are written earlier.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from opdump.adapters.torch.lesson import Lesson
from opdump.adapters.torch.memory import widened
from opdump.interpreter.interrupts import not_interrupted
from opdump.recorder import Recorder
from opdump.records import HostPayload, TensorRecord
from opdump.step_columns import ran


class FollowedElements:
    """Writes the elements of the current run."""

    def __init__(self, recorder: Recorder, follower: Any) -> None:
        self._recorder = recorder
        self._follower = follower
        self._lesson = Lesson(-1)

    @not_interrupted
    def file(self, lesson: Lesson) -> None:
        """Write the elements of this lesson's tensors that the follower has and that are not written yet."""
        self._lesson = lesson
        self._follower.file_kept(self._filed)

    def _filed(self, place: int, address: int, first_event: int, step: int) -> str | None:
        first = self._lesson.events[first_event]
        event, known = self._lesson.tensors[first.first_tensor + place]
        assert event.op is not None
        op = ran(event.op, self._follower.timestamp(event.number - first.number), step, event.op.arguments)
        is_wide = known.dtype == "bfloat16"
        memory = (ctypes.c_char * known.data_size).from_address(address)
        array: Any = np.ndarray(known.shape, np.uint16 if is_wide else known.dtype, memoryview(memory))
        if is_wide:
            array = widened(array)
        record = TensorRecord(
            op=op,
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
