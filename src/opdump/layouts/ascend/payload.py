"""Elements in a dump file, read on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opdump.errors import CorruptDumpError
from opdump.index.payload import InFile
from opdump.records import IO

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.dump_file import DumpTensor


@dataclass(frozen=True, slots=True)
class DumpPayload(InFile):
    """One tensor of a dump file, in the device's format.

    The file is opened only when the elements are requested: a dump may have more files than a process can keep open.
    """

    io: IO
    slot: int

    def inspect(self) -> None:
        """Raises like `tensor`; no element is read."""
        self.tensor()

    def tensor(self) -> DumpTensor:
        """The tensor with all its metadata in the file: format, original shape, groups.

        Raises CorruptDumpError if the file cannot be read, or no longer has the tensor.
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

    def read(self) -> npt.NDArray[Any]:
        """The result of `DumpTensor.to_host`: mapped if the file is large, widened if numpy lacks the type.

        Raises CorruptDumpError if the file cannot be read, and UndecodableTensorError if the tensor cannot be decoded.
        """
        return self.tensor().to_host()
