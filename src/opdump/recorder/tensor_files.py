"""Writes elements in layouts that write tensor by tensor: at once, except elements that are still being copied from a device."""

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
    """Tensors, constants and operator arguments that wait for the writer. Other layouts ignore them."""

    def __init__(self, writer: StepWriter, bounds: Bounds, *, copies: bool = False) -> None:
        """`copies`: `write_payload` copies elements before it returns, so that no other copy is needed."""
        self._bounds = bounds
        self.writer = writer if isinstance(writer, SupportsTensorFiles) else None
        self._copies = copies
        self._for_constants = writer if isinstance(writer, SupportsConstants) else None
        self._for_arguments = writer if isinstance(writer, SupportsKernelArgs) else None
        self._tensors: list[TensorSnapshot] = []
        self.waiting_bytes = 0
        """Bytes of the tensors that wait for the writer."""
        self._constants: list[tuple[int, TensorSnapshot]] = []
        self._with_arguments: set[tuple[int, int, str]] = set()

    @property
    def are_waiting(self) -> bool:
        return bool(self._tensors)

    @property
    def takes_constants(self) -> bool:
        return self._for_constants is not None

    def add(self, taken: TensorSnapshot) -> None:
        """Add a tensor with elements."""
        self._tensors.append(taken)
        self.waiting_bytes += taken.held_bytes

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        """Add a constant. It is written now unless it is still being copied from a device."""
        if taken.elements is not None and not taken.skip:
            self._constants.append((data_id, taken))
            if not taken.elements.are_pending:
                self._write_constants()

    def write_arguments(self, op: OpRecord) -> None:
        """Write the non-tensor arguments of an operator, once per step."""
        key = (op.graph_id, op.step, op.op_name)
        if op.arguments and key not in self._with_arguments and self._for_arguments is not None:
            self._with_arguments.add(key)
            self._for_arguments.write_kernel_args(op)

    def own_waiting(self) -> None:
        """Copy waiting elements that are still memory of the program, because the program goes on now."""
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.own()

    def write_ready(self) -> None:
        """Write elements that are in host memory. Elements that are being copied from a device wait for the end of the step."""
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
        """Write the elements of a tensor without a snapshot, `size` bytes. Return their location, or None if there is no room."""
        assert self.writer is not None, "the caller checks `copies` first"
        return self.writer.write_payload(record) if self._bounds.has_room(record.op.step, size) else None

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Write elements that were kept in memory with their step. This class keeps none; `RingElements` does."""

    def forget_tensors(self) -> None:
        self._tensors, self.waiting_bytes = [], 0

    def forget(self) -> None:
        self.forget_tensors()
        self._constants = []

    def end_step(self) -> None:
        """Start a new step, in which the arguments of operators are written again."""
        self._with_arguments.clear()

    def _write_constants(self) -> None:
        waiting, self._constants = self._constants, []
        for data_id, taken in waiting:
            if self._for_constants is not None and self._has_room(taken):
                self._for_constants.write_constant(data_id, taken.record())

    def _write(self, entry: TensorSnapshot) -> None:
        elements = entry.elements
        if self.writer is None or elements is None or not elements.are_held:
            return  # written before, in a call that was cut off by Ctrl-C or a full disk
        elements.filed(self.writer.write_payload(entry.record(lent=self._copies)) if self._has_room(entry) else None)

    def _has_room(self, entry: TensorSnapshot) -> bool:
        return entry.elements is None or self._bounds.has_room(entry.op.step, entry.elements.nbytes)
