"""Write sample records as a recorder does."""

from __future__ import annotations

from collections.abc import Sequence

from opdump.index.writer import RunFacts, own_version
from opdump.layouts.base import open_writer
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.testing import SampleStep, layout_tests


def new_writer(plan: DumpPlan, *, rank_id: int = 0) -> SyncWriter:
    facts = ("CPU", "fake", "1.2", own_version(), ("train.py", "--x"), plan.to_json())
    return SyncWriter(plan, RunFacts(rank_id, *facts))


def file_step(writer: SyncWriter, step: SampleStep) -> None:
    saves = writer.plan.saves_tensors
    files = [writer.write_payload(record) if saves and record.payload else None for record in step.tensors]
    writer.write_step(step.step, step.ops, step.tensors, files)


def file_steps(plan: DumpPlan, steps: Sequence[SampleStep], *, rank_id: int = 0) -> None:
    writer = new_writer(plan, rank_id=rank_id)
    for step in steps:
        file_step(writer, step)
    writer.close({"executed": sum(len(step.ops) for step in steps)})


def file_in_layout(plan: DumpPlan, steps: Sequence[SampleStep]) -> None:
    """Write them in the layout of the plan."""
    writer = open_writer(plan, RunFacts(0, "CPU", "fake", "1.2", "0", ("train.py", "--x"), "{}"))
    layout_tests.file_steps(writer, steps, elements=plan.saves_tensors)
