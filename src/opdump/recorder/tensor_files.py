"""The way of elements to their files, in layouts that file tensor by tensor: at once, but for those that are on their way from a device."""

from __future__ import annotations

from collections.abc import Iterable

from opdump.recorder.bounds import Bounds
from opdump.recorder.snapshots import TensorSnapshot
from opdump.recorder.writers import (
    StepWriter,
    SupportsConstants,
    SupportsKernelArgs,
    SupportsTensorFiles,
)
from opdump.records import OpRecord, TensorRecord


class TensorFiles:
    """Tensors, constants and arguments of operators that wait for the writer; of other layouts nothing is written."""

    def __init__(self, writer: StepWriter, bounds: Bounds, *, copies: bool = False) -> None:
        """`copies`: `write_payload` copies elements before it returns, so that nobody else has to."""
        self._bounds = bounds
        self.writer = writer if isinstance(writer, SupportsTensorFiles) else None
        self._copies = copies
        self._for_constants = writer if isinstance(writer, SupportsConstants) else None
        self._for_arguments = writer if isinstance(writer, SupportsKernelArgs) else None
        self._tensors: list[TensorSnapshot] = []
        self.waiting_bytes = 0
        """Bytes of those that wait for the writer."""
        self._constants: list[tuple[int, TensorSnapshot]] = []
        self._with_arguments: set[tuple[int, int, str]] = set()

    @property
    def are_waiting(self) -> bool:
        return bool(self._tensors)

    @property
    def takes_constants(self) -> bool:
        return self._for_constants is not None

    def add(self, taken: TensorSnapshot) -> None:
        """A tensor with elements."""
        self._tensors.append(taken)
        self.waiting_bytes += taken.held_bytes

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        """A constant, which is written now unless it is on its way from a device."""
        if taken.elements is not None and not taken.skip:
            self._constants.append((data_id, taken))
            if not taken.elements.are_pending:
                self._write_constants()

    def write_arguments(self, op: OpRecord) -> None:
        """Files the arguments of an operator that are no tensors, once in a step."""
        key = (op.graph_id, op.step, op.op_name)
        if op.arguments and key not in self._with_arguments and self._for_arguments is not None:
            self._with_arguments.add(key)
            self._for_arguments.write_kernel_args(op)

    def own_waiting(self) -> None:
        """Copies what waits and is memory of the program still, which goes on now."""
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.own()

    def write_ready(self) -> None:
        """Writes what is in host memory already; what is on its way from a device waits for the end of the step."""
        later = []
        for entry in self._tensors:
            if entry.elements is not None and entry.elements.are_pending:
                later.append(entry)
            else:
                self._write(entry)
        self._tensors, self.waiting_bytes = later, sum(entry.held_bytes for entry in later)

    def write_all(self) -> None:
        self._write_constants()
        for entry in self._tensors:
            self._write(entry)
        self.forget_tensors()

    @property
    def copies(self) -> bool:
        """Whether elements go to the writer at once, which copies them."""
        return self._copies and self.writer is not None

    def write_followed(self, record: TensorRecord, size: int) -> str | None:
        """Writes the elements of a tensor of which there is no snapshot, `size` bytes; where they are."""
        assert self.writer is not None, "`copies` asks first"
        return self.writer.write_payload(record) if self._bounds.has_room(record.op.step, size) else None

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Writes elements that were kept with their step: here none are (`RingElements`)."""

    def forget_tensors(self) -> None:
        self._tensors, self.waiting_bytes = [], 0

    def forget(self) -> None:
        self.forget_tensors()
        self._constants = []

    def end_step(self) -> None:
        """The arguments of operators are filed again from now on."""
        self._with_arguments.clear()

    def _write_constants(self) -> None:
        waiting, self._constants = self._constants, []
        for data_id, taken in waiting:
            if self._for_constants is not None and self._has_room(taken):
                self._for_constants.write_constant(data_id, taken.record())

    def _write(self, entry: TensorSnapshot) -> None:
        elements = entry.elements
        if self.writer is None or elements is None or not elements.are_held:
            return  # written already, by a call that Ctrl-C or a full disk cut off
        elements.filed(self.writer.write_payload(entry.record(lent=self._copies)) if self._has_room(entry) else None)

    def _has_room(self, entry: TensorSnapshot) -> bool:
        return entry.elements is None or self._bounds.has_room(entry.op.step, entry.elements.nbytes)
