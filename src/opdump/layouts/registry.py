"""The writer of a plan's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from opdump.graph import Graph
from opdump.index.writer import RunFacts
from opdump.layouts.ascend.writer import AscendWriter
from opdump.layouts.mindspore_async.writer import AsyncWriter
from opdump.layouts.mindspore_sync import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason
from opdump.sink import DirectorySink


class RankWriter(Protocol):
    """What every layout's writer has, whatever its files hold."""

    @property
    def sink(self) -> DirectorySink: ...

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None: ...
    def write_graph(self, graph: Graph) -> None: ...
    def close(self, totals: Mapping[str, int] | None) -> None: ...


def open_writer(plan: DumpPlan, run: RunFacts) -> RankWriter:
    """A writer in the layout of the plan."""
    if plan.layout == "mindspore-async":
        return AsyncWriter(plan, run, device_id=run.rank_id)
    if plan.layout == "acl":
        return AscendWriter(plan, run, device_id=run.rank_id)
    return SyncWriter(
        plan,
        rank_id=run.rank_id,
        device_target=run.device_target,
        framework=run.framework,
        framework_version=run.framework_version,
        command=run.command,
    )
