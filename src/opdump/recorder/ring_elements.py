"""Keeps elements in memory with their step, for a ring: they are written when the ring writes the step, or dropped with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opdump.recorder.bounds import Bounds
from opdump.recorder.snapshots import TensorSnapshot
from opdump.recorder.tensor_files import TensorFiles
from opdump.recorder.writers import StepWriter


class RingElements(TensorFiles):
    """Keeps the elements of the running step as long as they fit into memory. Constants wait for the first step that is written."""

    def __init__(
        self, writer: StepWriter, bounds: Bounds, make_room: Callable[[int, int], bool], *, copies: bool = False
    ) -> None:
        """`make_room` is called with a step and a size in bytes, and returns whether that fits beside the earlier steps."""
        super().__init__(writer, bounds, copies=copies)
        self._make_room = make_room
        self._bytes = 0
        """Bytes of the elements of the running step."""

    @property
    def copies(self) -> bool:
        """False: elements stay with the step."""
        return False

    def add(self, taken: TensorSnapshot) -> None:
        """Keep the elements of a tensor. If they do not fit, all elements of the step are dropped and no more are recorded."""
        assert taken.elements is not None
        if not self._bounds.takes_elements:
            taken.elements.filed(None)
            return
        self._tensors.append(taken)
        size = self._bytes + taken.kept_bytes
        if self._make_room(taken.op.step, size):
            taken.elements.own()
            self._bytes = size
            return
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.filed(None)
        self.forget_tensors()
        self._bounds.ring_has_no_room(taken.op.step)

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        if taken.elements is not None and not taken.skip:
            taken.elements.own()
            self._constants.append((data_id, taken))

    def write_ready(self) -> None:
        """Do nothing: elements stay with the step."""

    def write_all(self) -> None:
        """Do nothing: elements stay with the step."""

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Write the waiting constants, and the elements of a step."""
        self._write_constants()
        for entry in tensors:
            self._write(entry)

    def forget_tensors(self) -> None:
        super().forget_tensors()
        self._bytes = 0

    def end_step(self) -> None:
        """Hand the elements of the step over to the ring."""
        super().end_step()
        self.forget_tensors()

    def _has_room(self, entry: TensorSnapshot) -> bool:
        elements = entry.elements
        return elements is None or self._bounds.has_room(entry.op.step, elements.nbytes, are_kept=True)
