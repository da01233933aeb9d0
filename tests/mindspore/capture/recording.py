"""Captures what a program runs in PyNative mode, into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt

from opdump.adapters.base import Settings
from opdump.adapters.host import NumpyReader
from opdump.adapters.mindspore.pynative.capture import PyNative
from opdump.adapters.program_marks import ProgramMarks
from opdump.plan import DumpPlan, StepSet
from opdump.recorder import Recorder, make_recorder
from opdump.records import OpRecord, TensorRecord
from opdump.testing import CollectingWriter


@dataclass(frozen=True)
class Recording:
    """The records of a capture; complete when the block has ended."""

    clock: PyNative
    writer: CollectingWriter
    recorder: Recorder

    def ops(self, **wanted: Any) -> list[OpRecord]:
        """The recorded operators with these attributes, in order."""
        found = [op for op in self.writer.ops if not op.skip and all(getattr(op, k) == v for k, v in wanted.items())]
        return sorted(found, key=lambda op: (op.step, op.order))

    def types(self, **wanted: Any) -> list[str]:
        return [op.op_type for op in self.ops(**wanted)]

    def counts(self, **wanted: Any) -> Counter[str]:
        return Counter(self.types(**wanted))

    def counts_by_step(self, op_type: str) -> dict[int, int]:
        """The number of executions of operators of that type in each step."""
        return dict(sorted(Counter(op.step for op in self.ops(op_type=op_type)).items()))

    def op(self, op_type: str, **wanted: Any) -> OpRecord:
        """The only operator of a type."""
        (found,) = self.ops(op_type=op_type, **wanted)
        return found

    def tensors(self, op: OpRecord, io: str) -> list[TensorRecord]:
        found = [each for each in self.writer.tensors if each.op is op and each.io == io]
        return sorted(found, key=lambda tensor: tensor.slot)

    def sources(self, op: OpRecord) -> list[str]:
        return [tensor.source for tensor in self.tensors(op, "input")]

    def array(self, op: OpRecord, io: str = "output", slot: int = 0) -> npt.NDArray[Any]:
        (found,) = [each for each in self.tensors(op, io) if each.slot == slot]
        assert found.payload is not None, f"{op.op_name} has no elements: {found.skip}"
        return np.asarray(found.payload.to_host())


@contextmanager
def recorded(
    *, steps: str = "all", manual: bool = False, marks: ProgramMarks | None = None, stop: bool = False, **fields: Any
) -> Iterator[Recording]:
    """Capture everything while the block runs, unless `fields` of the plan restrict it."""
    plan = DumpPlan(
        path=Path("unused"), steps=StepSet.parse(steps), **{"saved_data": "full", "layout": "mindspore-2.10", **fields}
    )
    writer = CollectingWriter()
    recorder = make_recorder(plan, writer, NumpyReader.of_plan(plan))
    settings = Settings(steps="manual" if manual else "auto", marks=marks or ProgramMarks(), stop_after_dump=stop)
    clock = PyNative(recorder, settings)
    clock.start()
    try:
        yield Recording(clock, writer, recorder)
    finally:
        clock.stop()


def tensor(*shape: int, seed: int = 0, dtype: Any = np.float32) -> ms.Tensor:
    """Numbers between 0 and 1."""
    return ms.Tensor(np.random.default_rng(seed).random(shape).astype(dtype))


def bits(values: Any) -> list[bytes]:
    """The bytes of every tensor."""
    if isinstance(values, ms.Tensor):
        return [(values.float() if values.dtype == ms.bfloat16 else values).asnumpy().tobytes()]
    return [each for value in values for each in bits(value)]


def same_bits(program: Callable[[], Any], **fields: Any) -> Recording:
    """Capture a program, after checking that it returns the same bits each time; it must also return these under capture."""
    plain = bits(program())
    assert bits(program()) == plain, "the program itself returns different bits each time"
    with recorded(**fields) as recording:
        answer = program()
    assert bits(answer) == plain
    assert recording.recorder.failure is None
    return recording
