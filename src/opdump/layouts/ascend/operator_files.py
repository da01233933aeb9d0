"""An operator's tensors as one dump file, and the position of each tensor in it.

A tensor whose elements cannot be written (text, or unreadable) is left out, and later tensors move up, as on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from opdump.dtypes.data_types import BY_NAME
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, data_type
from opdump.dump_file.dump_file import FORMAT_NUMBERS, sample_attribute
from opdump.errors import UndecodableTensorError
from opdump.records import IO, OpRecord, TensorRecord, escaped

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

_DEFAULT_FORMAT = "ND"


def operator_file(op: OpRecord, tensors: Sequence[TensorRecord], *, message: str = "") -> DumpFile:
    """The dump file of an operator: its tensors with a payload, and empty ones."""
    entries: dict[IO, list[DumpTensor]] = {"input": [], "output": []}
    samples = []
    for record in tensors:
        if is_filed(record):
            slot = len(entries[record.io])
            entries[record.io].append(_entry(record, slot))
            if record.sample:
                samples.append(sample_attribute(record.io, slot, record.shape))
    return DumpFile(
        inputs=tuple(entries["input"]),
        outputs=tuple(entries["output"]),
        op_name=escaped(op.op_name),
        dump_time=op.timestamp,
        attributes=tuple(samples),
        dfx_message=escaped(message),
    )


def places(tensors: Sequence[TensorRecord]) -> list[tuple[IO, int] | None]:
    """For each tensor its number among the inputs or outputs in the file; None if it is left out."""
    counts: dict[IO, int] = {"input": 0, "output": 0}
    found: list[tuple[IO, int] | None] = []
    for record in tensors:
        if is_filed(record):
            found.append((record.io, counts[record.io]))
            counts[record.io] += 1
        else:
            found.append(None)
    return found


def is_filed(record: TensorRecord) -> bool:
    """Whether a tensor has an entry in the file: it has elements, or is known to have none."""
    return record.payload is not None or record.skip == "empty"


def _entry(record: TensorRecord, slot: int) -> DumpTensor:
    format_name = record.format if record.format in FORMAT_NUMBERS else _DEFAULT_FORMAT
    kind = BY_NAME.get(record.dtype)
    if record.payload is None:
        number, shape, data = kind.number if kind is not None else 0, record.shape, HeldBytes(b"")
    else:
        array = record.payload.to_host()
        # A sample, or the values of a quantised tensor: the available elements, in their own type.
        if kind is None or (array.dtype.name != record.dtype and not _widens(record.dtype, array)):
            kind = BY_NAME[array.dtype.name]
        if array.dtype.name != kind.dtype:
            encode = partial(DumpTensor.of, record.io, slot, array, format=format_name, original_shape=array.shape)
            try:
                return encode(data_type=kind.name)
            except (
                UndecodableTensorError
            ):  # values that the type cannot represent, computed by some program: kept unchanged
                return encode()
        contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        elements = contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b""
        number, shape, data = kind.number, array.shape, HeldBytes(elements)
    return DumpTensor(
        io=record.io,
        slot=slot,
        data_type=number,
        format=FORMAT_NUMBERS[format_name],
        shape=shape,
        data=data,
        original_shape=shape,
    )


def _widens(dtype: str, array: npt.NDArray[Any]) -> bool:
    """Whether the array contains, widened, elements of that type."""
    kind = BY_NAME.get(dtype)
    if kind is None or not data_type(kind.number).bits:
        return False
    if dtype.startswith(("bfloat", "float8", "float6", "float4", "hifloat8")):
        return array.dtype == np.float32
    if dtype == "complex32":
        return array.dtype == np.complex64
    return dtype in ("int4", "int2", "uint2", "uint1", "uint4") and array.dtype.kind in "iu"
