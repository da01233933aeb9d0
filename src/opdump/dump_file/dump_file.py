"""A dump file in memory: one execution of one operator on a device.

The whole header is kept, in the order of the file. The bytes of a tensor are read on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from opdump.dtypes.data_types import data_type, data_type_number
from opdump.dump_file.stored_bytes import MOST_DIMENSIONS, Bytes, HeldBytes, UnreadableBytes
from opdump.dump_file.tensor_formats import format_name, format_number

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.records import IO

Variant = Literal["2.0", "1.0", "nano"]
"""2.0: u64 length, header, bytes. 1.0: one message, including the bytes. nano: u64 length, tagged fields, bytes."""


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the original graph that an output corresponds to."""

    name: str = ""
    output_index: int = 0
    data_type: int = 0
    format: int = 0


@dataclass(frozen=True, slots=True)
class DumpTensor:
    """An input or output in the element type and the format of the device.

    `data_type` and `format` are the numbers in the file; `shape` counts elements in the device's format, `original_shape` in the
    framework's (empty if unknown). `sub_format` is the number of groups of a convolution's weights. There may be more bytes than
    the shape needs, because devices pad. `offset` is often meaningless (an error of the writer), and `address` is the device's.
    """

    io: IO
    slot: int
    data_type: int
    format: int
    shape: tuple[int, ...]
    data: Bytes
    original_shape: tuple[int, ...] = ()
    sub_format: int = 0
    address: int = 0
    offset: int = 0
    arg_index: int = 0
    input_type: int = 0
    original_op: OriginalOp | None = None
    dim_range: tuple[tuple[int, int], ...] = ()
    unknown: bytes = field(default=b"", repr=False)
    """Fields of a later version, as raw bytes; they are written back."""

    @classmethod
    def of(
        cls,
        io: IO,
        slot: int,
        array: npt.NDArray[Any],
        *,
        data_type: str | None = None,
        format: str = "ND",  # noqa: A002  # as the field
        original_shape: tuple[int, ...] = (),
    ) -> DumpTensor:
        """A tensor with the elements of `array` (in C order), whose shape is in `format`.

        `data_type` is a name of the enumeration (`FLOAT16`) or of a record (`float16`); the default is the array's own type.
        Raises UndecodableTensorError if the type cannot represent a value: nothing is rounded.
        """
        from opdump.dump_file.elements import encode_elements

        number = data_type_number(data_type or array.dtype.name)
        return cls(
            io=io,
            slot=slot,
            data_type=number,
            format=format_number(format),
            shape=array.shape,
            data=HeldBytes(encode_elements(array, number)),
            original_shape=original_shape,
        )

    @property
    def is_readable(self) -> bool:
        """False if the device could not copy the bytes, or if the shape is implausible; `to_host` and `data.read` then raise."""
        return not isinstance(self.data, UnreadableBytes)

    @property
    def name(self) -> str:
        """`input:0`, unique within the file."""
        return f"{self.io}:{self.slot}"

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.data)

    @property
    def dtype(self) -> str:
        """The element type in the spelling of a record: `float16`, `bfloat16`, `float8_e4m3fn`."""
        return data_type(self.data_type).dtype

    @property
    def format_name(self) -> str:
        """`NC1HWC0`; the number if it has no name."""
        return format_name(self.format)

    def to_host(self) -> npt.NDArray[Any]:
        """The elements as a read-only numpy array of `shape`, in the format of the device.

        Types that numpy lacks are widened: bfloat16, 8-, 6- and 4-bit floats to float32 (HiFloat8 too), integers of fewer than 8
        bits to int8 or uint8, COMPLEX32 to complex64. UNDEFINED is returned as int8, and text and other types of unknown element
        size as uint8: all bytes, in one dimension. An empty shape is a scalar if the bytes are one element, otherwise one
        dimension with all elements. The array may be a view of the mapped file.

        Raises UndecodableTensorError if there are fewer bytes than the shape needs, or numpy has no array of that shape.
        """
        from opdump.dump_file.elements import decode_elements

        return decode_elements(self.data, self.data_type, self.shape, self.name)


def with_bounded_shapes(tensor: DumpTensor) -> DumpTensor:
    """The tensor, marked unreadable if a shape has an implausible number of dimensions: their product alone would take minutes."""
    dimensions = max(len(tensor.shape), len(tensor.original_shape))
    if dimensions <= MOST_DIMENSIONS:
        return tensor
    reason = f"{tensor.name}: its shape has {dimensions} dimensions; no more than {MOST_DIMENSIONS} make sense"
    return replace(tensor, shape=(), original_shape=(), data=UnreadableBytes(tensor.data.path, reason))


@dataclass(frozen=True, slots=True)
class DumpBlob:
    """Bytes without a shape: the L1 buffer or the workspace of an operator. `kind` is the number in the file."""

    data: Bytes
    kind: int = 0
    arg_index: int = 0
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One dump file. `dump_time` is in microseconds since the epoch (milliseconds if msaccucmp wrote it)."""

    inputs: tuple[DumpTensor, ...] = ()
    outputs: tuple[DumpTensor, ...] = ()
    buffers: tuple[DumpBlob, ...] = ()
    spaces: tuple[DumpBlob, ...] = ()
    op_name: str = ""
    """The true name, with slashes; empty in exception files."""
    version: str = "2.0"
    dump_time: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    dfx_message: str = ""
    variant: Variant = "2.0"
    unknown: bytes = field(default=b"", repr=False)
    """Fields of a later version, as in tensors and blobs; smaller parts (a shape, an attribute) do not keep them."""
    path: Path | None = field(default=None, compare=False)
    """The path that it was read from; None if it was created."""

    @property
    def tensors(self) -> tuple[DumpTensor, ...]:
        """Inputs, then outputs: the order of their bytes."""
        return (*self.inputs, *self.outputs)
