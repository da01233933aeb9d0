"""Captures a TensorFlow program into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.adapters.base import DumpComplete, Settings, StepController
from opdump.adapters.tensorflow.adapter import ADAPTER
from opdump.plan import DumpPlan, StepSet
from opdump.recorder import Recorder, make_recorder
from opdump.testing import CollectingWriter


@dataclass(frozen=True)
class Recording:
    """The records of a capture; complete when the block has ended."""

    clock: StepController
    writer: CollectingWriter
    recorder: Recorder

    def ops(self, **wanted: Any) -> list[Any]:
        """The recorded operators with these attributes."""
        return [op for op in self.writer.ops if not op.skip and _has(op, wanted)]

    def skipped(self, **wanted: Any) -> list[Any]:
        return [op for op in self.writer.ops if op.skip and _has(op, wanted)]

    def array(self, op: Any, io: str = "output", slot: int = 0) -> npt.NDArray[Any]:
        """The values in a slot of an operator."""
        (found,) = [
            tensor for tensor in self.writer.tensors if tensor.op is op and (tensor.io, tensor.slot) == (io, slot)
        ]
        assert found.payload is not None, f"{op.op_name} has no elements: {found.skip}"
        return np.asarray(found.payload.to_host())


@contextmanager
def recorded(*, steps: str = "all", manual: bool = False, stop: bool = False, **fields: Any) -> Iterator[Recording]:
    """Capture everything while the block runs, unless `fields` of the plan restrict it."""
    plan = DumpPlan(path=Path("unused"), steps=StepSet.parse(steps), **{"saved_data": "full", **fields})
    writer = CollectingWriter()
    recorder = make_recorder(plan, writer, ADAPTER.reader(plan))
    settings = Settings(steps="manual" if manual else "auto", stop_after_dump=stop)
    with suppress(DumpComplete), ADAPTER.attach(recorder, settings) as clock:
        yield Recording(clock, writer, recorder)


def _has(op: Any, wanted: dict[str, Any]) -> bool:
    return all(getattr(op, name) == value for name, value in wanted.items())
