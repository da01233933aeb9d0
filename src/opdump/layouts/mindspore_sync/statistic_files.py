"""The statistic.csv of each directory of a dump: one row per tensor, appended to what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from opdump.errors import DumpPathError
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder, merge_statistic_csv
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord
from opdump.sink import DirectorySink

STATISTIC_NAME = "statistic.csv"


class StatisticFiles:
    """Writes them below `root` through `sink`, with the columns of the plan."""

    def __init__(self, plan: DumpPlan, root: Path, sink: DirectorySink) -> None:
        self._root = root
        self._sink = sink
        self._encoder = StatisticEncoder(plan.statistic_category, trailing_comma=plan.trailing_comma)
        self._written: dict[str, bytes] = {}

    def write(
        self,
        tensors: Sequence[FiledTensor],
        *,
        directory_of: Callable[[OpRecord], str],
        written_as: Callable[[OpRecord], tuple[OpRecord, str]],
    ) -> None:
        """Append the rows of tensors, those of an operator side by side; none for those without statistics.

        `written_as` gives the numbers and the name that the rows of an operator show.
        """
        tables: dict[str, tuple[list[str], list[FiledTensor]]] = {}
        start = self._encoder.start
        op = None
        for tensor in tensors:
            if tensor.op is not op:
                op = tensor.op
                begin = start(*written_as(op))
                starts, kept = tables.setdefault(directory_of(op), ([], []))
            if not (tensor.skip or op.skip):
                starts.append(begin)
                kept.append(tensor)
        written = {}
        for directory, (starts, kept) in tables.items():
            rows = self._encoder.text(starts, kept)
            if not rows:
                continue
            path = f"{directory}/{STATISTIC_NAME}"
            earlier = self._written[path] if path in self._written else _read_if_there(self._root / path)
            written[path] = merge_statistic_csv(earlier, self._encoder.header, rows, where=str(self._root / path))
            self._sink.write_bytes(path, written[path])
        # The next call is for the same step or for a later one: older texts are not needed again.
        self._written = written


def _read_if_there(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise DumpPathError(
            f"{path}: cannot be read ({error.strerror}), and rows are to be added to it: set 'path' to another directory"
        ) from error
