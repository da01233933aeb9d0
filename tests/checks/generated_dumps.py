"""Dumps of only statistics, of any program with any values: hypothesis draws them, `write` writes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from opdump.index.writer import RunFacts
from opdump.kernels import Summary
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import IO, Memory, OpRecord, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics

INF, NAN = math.inf, math.nan
SUMMARIES = {
    "usual": Summary(6, 0, 0, 0, 1, 2, 3, 2.0, -1.0, 3.0, 9.0),
    "zeros": Summary(6, 0, 0, 0, 6, 0, 0, 0.0, 0.0, 0.0, 0.0),
    "nan": Summary(6, 2, 0, 0, 0, 2, 2, NAN, NAN, NAN, NAN),
    "inf": Summary(6, 0, 1, 0, 1, 1, 3, INF, -1.0, INF, INF),
    "mask": Summary(6, 0, 0, 3, 3, 3, 0, 0.0, -INF, -INF, INF),
    "extreme": Summary(6, 0, 0, 0, 0, 3, 3, 3.2e38, -1.0, 3e38, INF),
    "lowest": Summary(6, 0, 0, 0, 3, 3, 0, 0.0, -3.4028234663852886e38, -1e39, INF),
}
TYPES = (
    "relu",
    "mm",
    "mul",
    "add",
    "masked_fill",
    "zeros_like",
    "clamp",
    "copy_",
    "softmax",
    "_foreach_add",
    "Parameter",
)
PHASES = ("forward", "backward", "optimizer")

tensors = st.fixed_dictionaries(
    {
        "io": st.sampled_from(["input", "output"]),
        "source": st.sampled_from(["", "data-0", "Parameter.w", "Parameter.inputs0", "Net/op0:0", "Net/op1:0", "Net/op2:0"]),
        "dtype": st.sampled_from(["float32", "float32", "float16", "int64"]),
        "shape": st.sampled_from([(2, 3), (6,), ()]),
        "storage": st.sampled_from([None, 0, 1]),
        "skip": st.sampled_from(["", "", "", "", "view"]),
    }
)  # fmt: skip
operators: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "op_type": st.sampled_from(TYPES),
        "name": st.integers(0, 4),
        "phase": st.sampled_from(PHASES),
        "tensors": st.lists(tensors, min_size=1, max_size=3),
        "has_infinite_argument": st.booleans(),
        "skip": st.sampled_from(["", "", "", "", "", "view"]),
    }
)
# Most tensors are ordinary: a step without unusual tensors creates no records, and a step with few creates few.
kinds = st.sampled_from(["usual"] * 12 + list(SUMMARIES) + ["none"])
DIGESTS: dict[str, dict[str, StatisticValue]] = {
    "usual": {"md5": "0" * 32},
    "zeros": {"md5": "1" * 32, "of_a_package": 2**63},
    "nan": {"of_a_package": -1},
    "inf": {"of_one": "a"},
}
"""By the same keys: the extra statistics beside the summaries, if a dump has any."""


def write(path: Path, program: list[dict[str, Any]], steps: list[list[str]], *, digests: bool = False) -> None:
    """Write a dump whose steps all run the program; `steps` gives the kind of each tensor. `digests`: add DIGESTS."""
    plan = DumpPlan(path=path, saved_data="statistic")
    writer = SyncWriter(plan, RunFacts(0, "CPU", "none", "0", "0", ("test",), plan.to_json()))
    for step, numbers in enumerate(steps):
        left = iter(numbers)
        ops, records = [], []
        for order, each in enumerate(program):
            op = OpRecord(
                each["op_type"],
                "w" if each["op_type"] == "Parameter" else f"Net/op{each['name']}",
                1_795_247_154_000_000 + step * 1000 + order,
                step=step,
                net_name="Net",
                order=order,
                phase=each["phase"],
                arguments={"value": {"float": "-inf"}} if each["has_infinite_argument"] else {},
                skip=each["skip"],
            )
            ops.append(op)
            records += [_tensor(op, slot, tensor, next(left), digests) for slot, tensor in enumerate(each["tensors"])]
        writer.write_step(step, ops, records, [None] * len(records))
    writer.close({"executed": len(program) * len(steps)})


def _tensor(op: OpRecord, slot: int, tensor: dict[str, Any], kind: str, digests: bool) -> TensorRecord:
    io: IO = "output" if op.op_type == "Parameter" else tensor["io"]
    shape, storage = tensor["shape"], tensor["storage"]
    others: dict[str, StatisticValue] = DIGESTS.get(kind, {}) if digests else {}
    return TensorRecord(
        op,
        io,
        slot,
        tensor["dtype"],
        shape,
        statistics={} if kind == "none" or tensor["skip"] else SummaryStatistics(SUMMARIES[kind], others),
        source=tensor["source"] if io == "input" else "",
        data_size=24,
        skip=tensor["skip"],
        memory=None if storage is None else Memory(storage, 0, (1,) * len(shape)),
    )
