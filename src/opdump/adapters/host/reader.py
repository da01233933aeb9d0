"""Reads host tensors at their addresses. The native core computes summaries; elements are not copied if possible.

A tensor of a run never changes after it is computed, so its summary as an output also serves the operators that read it: each tensor is
summarised once per run, and each initialiser once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opdump.adapters.host.element_types import widened_elements
from opdump.adapters.host.host_columns import NOT_READ, ChosenTensors, KeptSummaries, facts_of
from opdump.adapters.host.host_tensor import HostTensor
from opdump.kernels import DTYPE_CODES, DigestBatch, Summary, SummaryTable
from opdump.plan import DumpPlan
from opdump.recorder import Elements, TensorSnapshot
from opdump.records import SkipReason, StatisticValue
from opdump.statistics import ElementStatistics, Extremes, device_extremes, has_device_extremes, have_device_extremes
from opdump.step_columns import NO_SUMMARY, TensorFacts

if TYPE_CHECKING:
    import onnxruntime

LiveValue: TypeAlias = "HostTensor | onnxruntime.OrtValue | npt.NDArray[Any] | str"
"""A text is the type of a value that is not an array: `string`, `seq(tensor(float))`."""


class NumpyReader:
    """Reads the summary and, if requested, the elements of `HostTensor`s, OrtValues on the host and numpy arrays.

    Elements are copied only if the tensor may change. bfloat16 and the small floats become float32, integers below 8 bits int8 or uint8.
    `names` are the requested statistics; those that a summary lacks are computed separately. `sample` is the maximum number of elements
    to take of a tensor, the first in row-major order; statistics are always of the whole tensor. `device_extremes` also computes max and
    min by the rules of a device. Complex tensors have no summary. Text and values that are not tensors are `opaque`.
    """

    must_finish = False

    def __init__(
        self,
        *,
        statistics: bool,
        elements: bool,
        names: Sequence[str] = (),
        sample: int | None = None,
        device_extremes: bool = False,
    ) -> None:
        self._statistics = statistics
        self._elements = elements
        self._element_statistics = ElementStatistics(names)
        alone = self._element_statistics.digests_alone
        self._digests = DigestBatch(alone) if statistics and alone else None
        self._sample = sample
        self._table = SummaryTable(4096)
        self._fixed = SummaryTable(256)
        """Summaries of tensors that are the same in every run; never cleared."""
        self._fixed_summaries: list[Summary] = []
        self._kept: list[npt.NDArray[np.float64]] = []
        """Summaries that were taken ahead (`take_ahead`), latest first."""
        self._generation = 0
        self._device_extremes = device_extremes and statistics
        self._takes_blocks = statistics and not (elements or self._element_statistics)
        self._hosts: dict[int, HostTensor] = {}
        """The tensors of this step, by the identity of their `TensorSnapshot`, if extremes are requested."""
        self._extremes: dict[int, Extremes] = {}
        """Max and min by the rules of a device, if they differ from the summary, for blocks of this step, by row."""

    @classmethod
    def of_plan(cls, plan: DumpPlan) -> NumpyReader:
        return cls(
            statistics=plan.takes_statistics,
            elements=plan.saves_tensors,
            names=plan.statistic_category if plan.saves_statistics else (),
            sample=plan.sample_taken,
            device_extremes=plan.takes_device_extremes,
        )

    def leave_elements(self) -> None:
        """Stop reading elements."""
        self._elements = False

    def of_elements(self) -> NumpyReader:
        """A reader of the same tensors that reads all their elements, and no statistics."""
        return NumpyReader(statistics=False, elements=True)

    def take(self, tensor: LiveValue) -> TensorSnapshot:
        if isinstance(tensor, str):
            return TensorSnapshot(tensor, (), 0, "opaque")
        host = _host_tensor(tensor)
        element = host.element
        taken = TensorSnapshot(element.dtype, host.shape, host.size)
        taken.memory = host.memory
        if element.bits == 0:
            taken.skip = "opaque"
            return taken
        if host.count == 0:
            taken.skip = "empty"
            return taken
        if self._statistics:
            self._summarise(host, taken)
            if self._device_extremes:
                self._hosts[id(taken)] = host
        if self._elements:
            sample = self._sample if self._sample is not None and host.count > self._sample else 0
            if host.array is None or host.array.size != (sample or host.count):
                host.array = self._elements_of(host, sample or host.count)
            taken.elements = Elements(host.array, sample, "" if sample else host.npy)
        if element.known_to_numpy and element.code is None:
            return taken  # complex tensors have only elements
        if self._digests is not None and not host.fixed:
            taken.digest = self._digest_of(host, self._digests)
        elif self._element_statistics:
            if host.others is None:
                host.others = self._element_statistics.of(host.raw(), lambda: self._elements_of(host, host.count))
            taken.others = dict(host.others)
        return taken

    @property
    def takes_blocks(self) -> bool:
        """Whether the reader reads only summaries."""
        return self._takes_blocks

    def take_block(self, tensors: Sequence[LiveValue]) -> tuple[Sequence[TensorFacts], npt.NDArray[np.intp]]:
        """The facts of each tensor, and the row of its summary in `block_summaries`; -1 if it has none."""
        if isinstance(tensors, ChosenTensors):
            return tensors.choice.facts, self._rows_of(tensors)
        hosts = [each if isinstance(each, str) else _host_tensor(each) for each in tensors]
        facts = tuple(map(facts_of, hosts))
        rows = [
            -1 if each.skip or isinstance(host, str) else self._row_of(host)
            for host, each in zip(hosts, facts, strict=True)
        ]
        if self._device_extremes:
            self._take_extremes(
                [
                    (row, host)
                    for row, host in zip(rows, hosts, strict=True)
                    if row >= 0 and isinstance(host, HostTensor)
                ]
            )
        return facts, np.array(rows, np.intp)

    def take_ahead(self, tensors: ChosenTensors) -> None:
        """Summarise tensors whose memory may be gone when they are recorded."""
        self._rows_of(tensors)
        columns, places = tensors.columns, tensors.places
        rows = columns.rows[places]
        extremes = {place: self._extremes[row] for place, row in enumerate(rows.tolist()) if row in self._extremes}
        columns.kept = KeptSummaries(places, self._table.rows()[rows], extremes)

    def block_summaries(self) -> npt.NDArray[np.float64]:
        """The summaries of the step so far, then those taken ahead, then NO_SUMMARY. The latter two are addressed from the end, so they
        keep their rows when the table grows.
        """
        kept = np.concatenate([*self._kept, np.array([NO_SUMMARY])])
        return np.concatenate([self._table.rows(), kept])

    def block_extremes(self) -> Mapping[int, Extremes]:
        """Max and min by the rules of a device, if they differ from the summary, by row of `block_summaries`. Empty if not requested."""
        return dict(self._extremes)

    def block_others(self) -> Mapping[int, Mapping[str, StatisticValue]]:
        """Always empty, because blocks are only accepted if the reader reads only summaries."""
        return {}

    def _rows_of(self, tensors: ChosenTensors) -> npt.NDArray[np.intp]:
        choice, columns, chosen = tensors.choice, tensors.columns, tensors.places
        if columns.generation != self._generation:
            columns.generation = self._generation
            columns.rows.fill(NOT_READ)
            if columns.kept is not None:
                places, summaries, extremes = columns.kept
                self._kept.insert(0, summaries)
                first = -1 - sum(map(len, self._kept))
                columns.rows[places] = np.arange(first, first + len(places))
                self._extremes.update((first + place, each) for place, each in extremes.items())
        known = columns.rows[chosen]
        fresh = np.flatnonzero(known == NOT_READ)
        if len(fresh):
            pointers = columns.pointers[chosen[fresh]]
            first = self._table.add_all(pointers, choice.codes[fresh], choice.counts[fresh])
            known[fresh] = np.arange(first, first + len(fresh))
            columns.rows[chosen] = known
            if self._device_extremes:
                added = Summary._make(self._table.rows()[first:].T)
                others = ~have_device_extremes(added, are_floats=choice.are_floats[fresh])
                self._take_extremes(
                    [
                        (first + place, choice.tensor_at(int(fresh[place]), int(pointers[place])))
                        for place in np.flatnonzero(others).tolist()
                    ]
                )
        rows = np.full(len(choice.facts), -1, np.intp)
        rows[choice.read] = known
        for number, host in zip(choice.objects, tensors.objects, strict=True):
            if not isinstance(host, str) and not choice.facts[number].skip:
                row = rows[number] = self._row_of(host)
                if self._device_extremes and row >= 0:
                    self._take_extremes([(row, host)])
        return rows

    def _take_extremes(self, found: Sequence[tuple[int, HostTensor]]) -> None:
        """Compute max and min by the rules of a device at once, because the memory of a block's tensor may be gone later."""
        if not found:
            return
        summaries = map(Summary._make, self._table.rows()[[row for row, _ in found]].tolist())
        for (row, host), summary in zip(found, summaries, strict=True):
            extremes = self._extremes_of(host, summary)
            if extremes is not None:
                self._extremes[row] = extremes

    def skip(self, tensor: LiveValue, reason: SkipReason) -> TensorSnapshot:
        """The facts of a tensor without reading its elements."""
        if isinstance(tensor, str):
            return TensorSnapshot(tensor, (), 0, reason)
        host = _host_tensor(tensor)
        return TensorSnapshot(host.element.dtype, host.shape, 0, reason)

    def summaries(self, entries: Sequence[TensorSnapshot]) -> list[Summary | None]:
        """The summaries of tensors taken in this step; None for complex tensors, or if none were requested."""
        table, make, known = self._table, Summary._make, self._fixed_summaries
        known.extend(map(make, self._fixed.rows()[len(known) :].tolist()))
        asked = sorted({taken.row for taken in entries if taken.table is table})  # other rows belong to blocks
        rows = dict(zip(asked, map(make, table.rows()[asked].tolist()), strict=True)) if asked else {}
        found = [
            rows[taken.row] if taken.table is table else (None if taken.table is None else known[taken.row])
            for taken in entries
        ]
        if self._digests is not None:
            for taken in entries:
                if taken.digest >= 0:
                    taken.others = dict(self._digests.digests(taken.digest))
        if self._device_extremes:
            for taken, summary in zip(entries, found, strict=True):
                host = self._hosts.get(id(taken))
                if host is not None and summary is not None:
                    taken.extremes = self._extremes_of(host, summary)
        return found

    def finish_step(self) -> None:
        """Nothing to do, because everything is read at once."""

    def clear(self) -> None:
        self._table.clear()
        if self._digests is not None:
            self._digests.clear()
        self._kept.clear()
        self._hosts.clear()
        self._extremes.clear()
        self._generation += 1

    def _extremes_of(self, host: HostTensor, summary: Summary) -> Extremes | None:
        if has_device_extremes(summary, is_float="float" in host.element.dtype):
            return None
        if not host.extremes:
            elements = widened_elements(host.raw(), host.element, host.shape)
            host.extremes.append(device_extremes(elements, summary))
        return host.extremes[0]

    def _summarise(self, host: HostTensor, taken: TensorSnapshot) -> None:
        if host.fixed and host.row < 0:
            host.row = self._added(host, self._fixed)
        row = host.row if host.fixed else self._row_of(host)
        if row >= 0:
            taken.table = self._fixed if host.fixed else self._table
            taken.row = row

    def _digest_of(self, host: HostTensor, digests: DigestBatch) -> int:
        """The number of a tensor's digests in this step; the tensor is added to the batch if necessary."""
        generation, number = host.digest
        if generation != self._generation:
            number = digests.add(host.pointer, host.size, host.element.storage.itemsize)
            host.digest = self._generation, number
        return number

    def _row_of(self, host: HostTensor) -> int:
        """The row of a tensor's summary in the table of the step; -1 if it has none."""
        if host.fixed:
            return self._added(host, self._table)  # `host.row` belongs to another table
        if host.row < 0 or host.generation != self._generation:
            host.row = self._added(host, self._table)
            host.generation = self._generation
        return host.row

    def _added(self, host: HostTensor, table: SummaryTable) -> int:
        element = host.element
        if element.code is not None:
            return table.add(host.pointer, element.code, host.count)
        if element.known_to_numpy:
            return -1  # a complex type, which has no order
        wide = np.ascontiguousarray(self._elements_of(host, host.count))
        return table.add(wide.ctypes.data, DTYPE_CODES[wide.dtype.name], host.count)

    def _elements_of(self, host: HostTensor, count: int) -> npt.NDArray[Any]:
        element = host.element
        if count != host.count:
            # Copied, because the sample is kept longer than the tensor.
            first = count if element.bits >= 8 else element.size(count)
            sample: npt.NDArray[Any] = widened_elements(host.raw()[:first], element, (count,)).copy()
            return sample
        elements = widened_elements(host.raw(), element, host.shape)
        return elements if host.stays or not element.known_to_numpy else elements.copy()


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """A `Runtime` whose tensors are in the memory of this process."""

    framework: str
    framework_version: str
    device_target: str

    def reader(self, plan: DumpPlan) -> NumpyReader:
        return NumpyReader.of_plan(plan)


def _host_tensor(tensor: HostTensor | onnxruntime.OrtValue | npt.NDArray[Any]) -> HostTensor:
    if isinstance(tensor, HostTensor):
        return tensor
    if isinstance(tensor, np.ndarray):
        return HostTensor.of_array(tensor)
    return HostTensor.of_ort_value(tensor)
