"""Watch mode: after each operator A, records the current content of the outputs of each watched operator C, as `A_To_C`.

It reads memory, not variables of the program: a write through a view, an alias, `.data`, numpy or a foreign kernel appears at the next
operator. The memory of an output is kept until its operator runs again or the capture ends, so that it is not reused in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from opdump.adapters.models import SupportsNames
from opdump.plan import DumpPlan, ModelSelection, WatchedLook
from opdump.plan.unmatched_names import with_nearest
from opdump.recorder import LiveTensor, WatchRecorder
from opdump.records import OpRecord

# The names that ran are only kept to suggest similar ones.
_MOST_SEEN = 100_000
TENSOR = "Tensor"
"""op_type of a watched tensor of the program."""


Look: TypeAlias = Callable[[], Any]
"""Returns a watched tensor with its current content, for a reader."""


@dataclass(frozen=True, slots=True)
class _Watched:
    op_type: str
    node: str
    op_name: str
    tensors: tuple[tuple[int, str, Look], ...]

    def lives(self) -> list[LiveTensor]:
        return [(slot, argument, look(), "", "") for slot, argument, look in self.tensors]


class Watches:
    """Follows the `watcher_nodes` of a plan through a run. `now` returns a new timestamp, `names` has the names of operators.

    `hold` keeps the memory of a tensor alive and returns its `Look`. `apart` is a context in which operations do not count as the program's.
    """

    def __init__(
        self,
        plan: DumpPlan,
        recorder: WatchRecorder,
        now: Callable[[], int],
        names: SupportsNames,
        hold: Callable[[Any], Look],
        apart: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._names = names
        self._hold = hold
        self._apart = apart
        self._seen: dict[str, None] = {}
        self._entries: list[ModelSelection] = [entry for entry in plan.models or () if entry.watcher_nodes]
        self._recorder = recorder
        self._now = now
        self._steps = plan.steps
        self._configured = frozenset(
            name
            for entry in self._entries
            if entry.layers is not None  # a file has layers and watched operators, a program only the latter
            for name in (*entry.layers, *entry.watcher_nodes)
        )
        self._watched: dict[str, _Watched] = {}
        self._tensors: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self.matched: set[str] = set()
        """Names in the plan that matched an operator."""

    def add_tensors(self, tensors: Mapping[str, Any], op: OpRecord) -> None:
        """Watch tensors of the program from now on. `op` is a record of the current position."""
        with self._lock, self._apart():
            for name, tensor in tensors.items():
                watched = _Watched(TENSOR, name, name, ((0, "", self._hold(tensor)),))
                self._tensors[name] = watched
                first = replace(op, op_type=TENSOR, op_name=name, timestamp=self._now(), kernel="")
                self._recorder.watch_begins(first, watched.lives())

    def add_nodes(self, nodes: Sequence[str]) -> None:
        with self._lock:
            self._entries.append(ModelSelection(watcher_nodes=tuple(nodes)))

    def ran(self, op: OpRecord, outputs: Iterable[tuple[int, str, Any]], *, collective: bool) -> None:
        """Process an operator that has launched a kernel. `outputs` are (slot, name, tensor)."""
        if op.step not in self._steps:
            return
        names = self._names.of(op.op_name)
        if len(self._seen) < _MOST_SEEN:
            self._seen[op.op_name] = None
        with self._lock, self._apart():
            mine = {node for entry in self._entries for node in entry.watcher_nodes if node in names}
            if mine:
                self.matched |= mine
                if op.phase == "forward":
                    self._begin(mine, op, list(outputs))
            elif not collective and not op.op_type.startswith("Hcom"):
                for after, watched in self._looks_after(op.op_name, names):
                    self._file(op, after, watched)

    def _looks_after(self, op_name: str, names: Collection[str]) -> Iterator[tuple[str, _Watched]]:
        """What is recorded after an operator with these `names`, each under the name that the plan has for the operator."""
        looks: dict[str, str] = {}
        for entry in self._entries:
            after = op_name
            if entry.layers is not None:
                after = next((name for name in entry.layers if name in names), "")
                if not after:
                    continue
                self.matched.add(after)
            for node in entry.watcher_nodes:
                looks.setdefault(node, after)
        yield from ((after, self._watched[node]) for node, after in looks.items() if node in self._watched)
        yield from ((op_name, watched) for watched in self._tensors.values())

    def unmatched(self) -> list[str]:
        named = {node for entry in self._entries for node in entry.watcher_nodes}
        named.update(name for entry in self._entries for name in entry.layers or ())
        watchers = {node for entry in self._entries for node in entry.watcher_nodes}
        seen = dict.fromkeys(name for op_name in self._seen for name in (op_name, *self._names.of(op_name)))
        return [
            with_nearest(
                f"{self._key(name, name in watchers)}: {name!r} is not an operator or module that ran", name, seen
            )
            for name in sorted(named - self.matched)
        ]

    def _key(self, name: str, is_watcher: bool) -> str:
        """The origin of a name: its key in a configuration, or `watch` for a program."""
        if name not in self._configured:
            return "watch"
        return "dump_list.watcher_nodes" if is_watcher else "dump_list.layer"

    def _begin(self, nodes: Iterable[str], op: OpRecord, outputs: Sequence[tuple[int, str, Any]]) -> None:
        watched_memory = tuple((slot, argument, self._hold(tensor)) for slot, argument, tensor in outputs)
        for node in nodes:
            watched = self._watched[node] = _Watched(op.op_type, node, op.op_name, watched_memory)
            self._recorder.watch_begins(replace(op, op_name=node, timestamp=self._now()), watched.lives())

    def _file(self, op: OpRecord, after: str, watched: _Watched) -> None:
        record = replace(
            op,
            op_type=watched.op_type,
            op_name=str(WatchedLook(after, watched.node)),
            timestamp=self._now(),
            forward_op="",
            skip="",
        )
        self._recorder.watched(record, watched.lives())
