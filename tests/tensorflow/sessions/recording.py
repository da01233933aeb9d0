"""Records the sessions of a program into a directory, and provides what was written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import opdump
from opdump.adapters.host import NumpyReader
from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.sessions.session import Interception
from opdump.index.writer import RunFacts
from opdump.layouts.base import open_writer
from opdump.plan import DumpPlan, StepSet
from opdump.recorder import make_recorder

v1 = tf.compat.v1


class Recorded:
    """A capture in a separate directory, and what it wrote; complete when the block of `recorded` has ended."""

    def __init__(self, out: Path, capture: Capture) -> None:
        self.out = out
        self.capture = capture
        self.not_steps: dict[str, int] = {}
        self._catalog: Any = None

    @property
    def catalog(self) -> Any:
        if self._catalog is None:
            self._catalog = opdump.open(self.out)
        return self._catalog

    def executions(self, name: str | None = None, step: int | None = None) -> list[Any]:
        """Executions of operators with data, in order."""
        return [
            each
            for each in self.catalog.executions()
            if not each.op.skip and name in (None, each.op.op_name) and step in (None, each.op.step)
        ]

    def ops(self, name: str | None = None, step: int | None = None) -> list[Any]:
        return [each.op for each in self.executions(name, step)]

    def values(self, name: str, step: int = 0, io: str = "output", slot: int = 0) -> list[Any]:
        """The values of an operator's output (or input) in a step, one for each time that it ran."""
        found = []
        for each in self.executions(name, step):
            record = (each.outputs if io == "output" else each.inputs).get(slot)
            if record is not None and record.payload is not None:
                found.append(record.payload.to_host())
        return found

    def value(self, name: str, step: int = 0, io: str = "output", slot: int = 0) -> Any:
        found = self.values(name, step, io, slot)
        assert len(found) == 1, f"{name}: {len(found)} values in step {step}"
        return found[0]

    def skips(self, step: int | None = None) -> dict[str, str]:
        """Operators without data, with the reason."""
        return {
            op.op_name: op.skip for op in self.catalog.ops(include_skipped=True) if op.skip and step in (None, op.step)
        }

    def steps(self) -> list[tuple[int, int]]:
        """(model, step) of everything that was written."""
        return sorted({(op.graph_id, op.step) for op in self.ops()})


@contextmanager
def recorded(
    steps: StepSet | None = None, *, intercepts: bool = True, streams: bool = False, **plan: Any
) -> Iterator[Recorded]:
    """Record all sessions in the block: inputs and outputs of each step, unless `plan` says otherwise."""
    out = Path(tempfile.mkdtemp(prefix="opdump-test-"))
    options = {"inputs": True, "outputs": True, **plan}
    made = DumpPlan(
        path=out, layout="acl", dialect="tensorflow", file_format="bin", stream_in_names=False,
        steps=steps or StepSet.all(), **options,
    )  # fmt: skip
    writer = open_writer(made, RunFacts(0, "CPU", "tensorflow", tf.__version__, "0", (), made.to_json()))
    capture = Capture(make_recorder(made, writer, NumpyReader.of_plan(made)), streams=streams)
    found = Recorded(out, capture)

    def closed(session: Any) -> None:
        for purpose, count in session.not_steps.items():
            found.not_steps[purpose] = found.not_steps.get(purpose, 0) + count

    interception = Interception(lambda _: capture if intercepts else None, closed)
    try:
        interception.put_in()
        try:
            yield found
        finally:
            interception.take_out()
        capture.close()
        writer.close({})
    except BaseException:
        writer.close({})
        shutil.rmtree(out, ignore_errors=True)
        raise


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal bit for bit, through lists, tuples and dicts."""
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if first is None or second is None:
        return first is second
    one, two = np.asarray(first), np.asarray(second)
    if object in (one.dtype, two.dtype):
        return one.shape == two.shape and bool((one == two).all())
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
