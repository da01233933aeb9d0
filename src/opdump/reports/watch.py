"""What wrote into watched memory: the first operator after which the bytes of a watched output differed.

A dump of watch mode contains `A_To_C` for each look: the content of an output of C after A ran. The index also has the content
right after C itself; in a dump without an index the first look takes its place, so a change by the very first operator is not
detected.

Looks are compared one after another, with one digest per watched output in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from opdump import amounts
from opdump.catalog.catalog import Execution
from opdump.plan import WatchedLook
from opdump.records import OpRecord, TensorRecord
from opdump.reports.table import Column, Printer


@dataclass(slots=True)
class WatchedOutput:
    """One output of one execution of a watched operator."""

    node: str
    slot: int
    step: int
    rank_id: int
    digest: str
    looks: int = 0
    writer: OpRecord | None = None
    """The record of the look that found the first change; its name is `A_To_C`."""
    changes: int = 0

    @property
    def writer_name(self) -> str:
        """The operator after which the bytes differed; empty if they did not change."""
        return "" if self.writer is None else self.writer.op_name.removesuffix(str(WatchedLook("", self.node)))


@dataclass(slots=True)
class _Nodes:
    """The outputs of a rank that are being watched."""

    known: dict[tuple[str, int], WatchedOutput] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def node_of(self, op_name: str) -> str | None:
        """C of `A_To_C`; None for a name of another form. If C is the name of a known node it is matched as a whole; otherwise it
        is the last part.
        """
        nodes = [look.node for look in WatchedLook.readings(op_name)]
        return next((node for node in nodes if node in self.names), nodes[-1] if nodes else None)


def watched_outputs(executions: Iterable[Execution]) -> list[WatchedOutput]:
    """Every watched output of a dump, in the order in which they were first looked at. `executions` must be in order and
    complete.
    """
    found: list[WatchedOutput] = []
    ranks: dict[int, _Nodes] = {}
    for execution in executions:
        op = execution.op
        nodes = ranks.setdefault(op.rank_id, _Nodes())
        is_begin = any(record.skip == "not watched" for record in execution.tensors)
        node = op.op_name if is_begin else nodes.node_of(op.op_name)
        if node is None:
            continue
        if is_begin:
            nodes.names.add(node)
        for record in execution.tensors:
            digest = _digest(record)
            if digest is None:
                continue
            watched = nodes.known.get((node, record.slot))
            if is_begin or watched is None:
                watched = WatchedOutput(node, record.slot, op.step, op.rank_id, digest)
                nodes.known[node, record.slot] = watched
                found.append(watched)
            if is_begin:
                continue
            watched.looks += 1
            if digest != watched.digest:
                watched.digest = digest
                watched.changes += 1
                watched.writer = watched.writer or op
    return found


def print_watch(printer: Printer, outputs: Sequence[WatchedOutput], *, limit: int) -> None:
    """Print one row for each watched output that changed, and the number that did not."""
    changed = [output for output in outputs if output.writer is not None]
    columns = (
        Column("rank", right=True),
        Column("step", right=True),
        Column("watched", gives_way=True),
        Column("output", right=True),
        Column("first changed after", gives_way=True),
        Column("kernel", spare=2),
        Column("source"),
        Column("changes", right=True, spare=1),
        Column("looks", right=True, spare=3),
    )
    if changed:
        printer.table(columns, [_row(output) for output in (changed[:limit] if limit else changed)])
        if limit and len(changed) > limit:
            printer.text(f"... and {amounts.count(len(changed) - limit, 'more output')} (--limit 0 shows all)")
    looks = sum(output.looks for output in outputs)
    printer.text(
        f"{amounts.count(len(outputs), 'watched output')}, {amounts.count(looks, 'look')}: "
        + (f"{len(changed)} changed" if changed else "none changed")
    )


def watch_json(outputs: Sequence[WatchedOutput]) -> list[dict[str, object]]:
    """The same as JSON; `first_changed_after` is None if the bytes did not change."""
    return [
        {
            "rank": output.rank_id,
            "step": output.step,
            "watched": output.node,
            "output": output.slot,
            "first_changed_after": output.writer_name or None,
            "kernel": output.writer.kernel if output.writer is not None else None,
            "source": output.writer.line if output.writer is not None else None,
            "changes": output.changes,
            "looks": output.looks,
        }
        for output in outputs
    ]


def _row(output: WatchedOutput) -> list[str]:
    writer = output.writer
    assert writer is not None
    return [
        str(output.rank_id),
        str(output.step),
        output.node,
        str(output.slot),
        output.writer_name,
        writer.kernel or writer.op_type,
        writer.line,
        str(output.changes),
        str(output.looks),
    ]


def _digest(record: TensorRecord) -> str | None:
    known = record.statistics.get("md5")
    if known is not None:
        return str(known)
    if record.payload is None:
        return None
    flat = np.ascontiguousarray(record.payload.to_host()).reshape(-1).view(np.uint8)
    return hashlib.md5(flat.data, usedforsecurity=False).hexdigest()
