"""The schema of the header of a dump file: the message `DumpData`, built on first use.

Field numbers are those of the public `dump_data.proto` (docs/dump-files.md#the-header). Enumerations are declared as plain
integers and text as bytes, which have the same bytes on disk: a number that a later version adds is kept, and so is a name that
is not UTF-8. Protobuf keeps unknown fields. The descriptors are in a separate pool, so that another library may load its own
copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from opdump.protobuf_messages import Fields, message_classes

_FILE: Final = "opdump/dump_data.proto"
_PACKAGE: Final = "toolkit.dumpdata"

_MESSAGES: Final[Mapping[str, Fields]] = MappingProxyType(
    {
        "DumpData": (
            ("version", 1, "bytes"),
            ("dump_time", 2, "uint64"),
            ("output", 3, "*OpOutput"),
            ("input", 4, "*OpInput"),
            ("buffer", 5, "*OpBuffer"),
            ("op_name", 6, "bytes"),
            ("attr", 7, "*OpAttr"),
            ("space", 8, "*Workspace"),
            ("dfx_message", 9, "bytes"),
        ),
        "OpOutput": (
            ("data_type", 1, "int32"),
            ("format", 2, "int32"),
            ("shape", 3, "Shape"),
            ("original_op", 4, "OriginalOp"),
            ("data", 5, "bytes"),
            ("size", 6, "uint64"),
            ("original_shape", 7, "Shape"),
            ("sub_format", 8, "int32"),
            ("address", 9, "uint64"),
            ("dim_range", 10, "*DimRange"),
            ("offset", 11, "uint64"),
            ("arg_index", 12, "uint32"),
        ),
        "OpInput": (
            ("data_type", 1, "int32"),
            ("format", 2, "int32"),
            ("shape", 3, "Shape"),
            ("data", 4, "bytes"),
            ("size", 5, "uint64"),
            ("original_shape", 6, "Shape"),
            ("sub_format", 7, "int32"),
            ("address", 8, "uint64"),
            ("offset", 9, "uint64"),
            ("arg_index", 10, "uint32"),
            ("input_type", 11, "uint32"),
        ),
        "OriginalOp": (
            ("name", 1, "bytes"),
            ("output_index", 2, "uint32"),
            ("data_type", 3, "int32"),
            ("format", 4, "int32"),
        ),
        "Shape": (("dim", 1, "*uint64"),),
        "DimRange": (("dim_start", 1, "uint64"), ("dim_end", 2, "uint64")),
        "OpBuffer": (("buffer_type", 1, "int32"), ("data", 2, "bytes"), ("size", 3, "uint64")),
        "Workspace": (("type", 1, "int32"), ("data", 2, "bytes"), ("size", 3, "uint64"), ("arg_index", 4, "uint32")),
        "OpAttr": (("name", 1, "bytes"), ("value", 2, "bytes")),
    }
)


def dump_data() -> Any:
    """The message class of `DumpData`."""
    return _classes()["DumpData"]


@cache
def _classes() -> Mapping[str, Any]:
    return message_classes(_MESSAGES, package=_PACKAGE, file=_FILE, syntax="proto3")
