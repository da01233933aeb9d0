"""Elements that wait in a dump file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdump.errors import CorruptDumpError
from opdump.index.payload import inside
from opdump.records import IO

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.dump_file import DumpTensor


@dataclass(frozen=True, slots=True)
class DumpPayload:
    """One tensor of the dump file `root`/`relative`, in the device's format.

    The file is opened when the elements are asked for and not before: a dump may have more files than a process can hold open.
    """

    root: Path
    relative: str
    io: IO
    slot: int

    @property
    def path(self) -> Path:
        """Where the file is. Raises CorruptDumpError where that is outside the dump."""
        return inside(self.root, self.relative)

    @property
    def file(self) -> str:
        """The path as the dump was opened."""
        return os.path.join(self.root, self.relative)

    def inspect(self) -> None:
        """Raises as `tensor` does; no element is read."""
        self.tensor()

    def tensor(self) -> DumpTensor:
        """The tensor with everything that the file says of it: format, original shape, groups.

        Raises CorruptDumpError where the file cannot be read, or no longer has the tensor.
        """
        from opdump.dump_file import read_dump_file

        path = self.path
        file = read_dump_file(path)
        tensors = file.inputs if self.io == "input" else file.outputs
        if self.slot >= len(tensors):
            raise CorruptDumpError(
                f"{path}: holds {len(tensors)} tensors of kind {self.io}, and no number {self.slot}; it had one when the dump "
                "was opened: it was written anew. Open the dump again"
            )
        return tensors[self.slot]

    def to_host(self) -> npt.NDArray[Any]:
        """The elements as `DumpTensor.to_host` gives them: mapped where the file is large, widened where numpy lacks the type.

        Raises CorruptDumpError where the file cannot be read, UndecodableTensorError where the tensor cannot be decoded.
        """
        return self.tensor().to_host()
