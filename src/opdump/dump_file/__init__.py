"""Reads and writes dump files of Ascend devices.

file = read_dump_file("Conv2D.conv1.1.5.1732082705016774")
file.op_name, file.inputs[0].dtype, file.inputs[0].format_name      # "net/conv1", "float16", "NC1HWC0"
file.outputs[0].to_host()                                          # a numpy array, in the device's format
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdump.interpreter.late_imports import late_names

if TYPE_CHECKING:
    from opdump.dtypes import DATA_TYPES, DataType, data_type, data_type_number
    from opdump.dump_file.dump_file import (
        FORMAT_NAMES,
        FORMAT_NUMBERS,
        DumpBlob,
        DumpFile,
        DumpTensor,
        OriginalOp,
        Variant,
        format_name,
        format_number,
        write_dump_file,
    )
    from opdump.dump_file.reading import read_dump_file
    from opdump.dump_file.stored_bytes import Bytes, HeldBytes, UnreadableBytes

__all__ = [
    "DATA_TYPES",
    "FORMAT_NAMES",
    "FORMAT_NUMBERS",
    "Bytes",
    "DataType",
    "DumpBlob",
    "DumpFile",
    "DumpTensor",
    "HeldBytes",
    "OriginalOp",
    "UnreadableBytes",
    "Variant",
    "data_type",
    "data_type_number",
    "format_name",
    "format_number",
    "read_dump_file",
    "write_dump_file",
]

__getattr__ = late_names(__name__, "..dtypes", ".stored_bytes", ".dump_file", ".reading")
