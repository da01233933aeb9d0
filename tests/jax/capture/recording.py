"""Captures a JAX program into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from opdump.adapters.base import Settings, StepController
from opdump.adapters.jax.adapter import ADAPTER
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
        """The recorded operators with these attributes, in order."""
        return [op for op in self.writer.ops if not op.skip and all(getattr(op, k) == v for k, v in wanted.items())]

    def counts(self, graph: int = 1) -> Counter[str]:
        """The number of executions of each operator type in a function, except its calls and updates."""
        return Counter(op.op_type for op in self.ops(graph_id=graph) if op.op_type not in ("jit", "Parameter"))

    def array(self, op: Any, io: str = "output", slot: int = 0) -> npt.NDArray[Any]:
        (found,) = [each for each in self.writer.tensors if each.op is op and (each.io, each.slot) == (io, slot)]
        assert found.payload is not None, f"{op.op_name} has no elements: {found.skip}"
        return np.asarray(found.payload.to_host())


@contextmanager
def recorded(*, steps: str = "all", manual: bool = False, **fields: Any) -> Iterator[Recording]:
    """Capture everything while the block runs, unless `fields` of the plan restrict it."""
    plan = DumpPlan(path=Path("unused"), steps=StepSet.parse(steps), **{"saved_data": "full", **fields})
    writer = CollectingWriter()
    recorder = make_recorder(plan, writer, ADAPTER.reader(plan))
    with ADAPTER.attach(recorder, Settings(steps="manual" if manual else "auto")) as clock:
        yield Recording(clock, writer, recorder)


def bits(tree: Any) -> list[bytes]:
    """The bytes of every leaf."""
    found = []
    for leaf in jax.tree.leaves(tree):
        is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found.append(np.array(jax.random.key_data(leaf) if is_key else leaf).tobytes())
    return found
