"""The schema of `ge.proto.ModelDef`, built on first use.

Field numbers come from the graph engine's public schema; fields that no dump uses are left out. It declares explicit presence, as
in older protobuf: a zero in an attribute is then written, and readers need it. An entry of a map is a message with `key` and
`value`, which has the same text form.

See docs/tensorflow-graph.md#the-files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from opdump.dtypes.data_types import DATA_TYPES
from opdump.protobuf_messages import Fields, message_classes

_MESSAGES: Final[Mapping[str, Fields]] = MappingProxyType(
    {
        "ModelDef": (
            ("name", 1, "string"),
            ("version", 2, "uint32"),
            ("custom_version", 3, "string"),
            ("graph", 7, "*GraphDef"),
            ("attr", 11, "*AttrEntry"),
        ),
        "GraphDef": (
            ("name", 1, "string"),
            ("input", 4, "*string"),
            ("output", 5, "*string"),
            ("op", 6, "*OpDef"),
            ("attr", 11, "*AttrEntry"),
        ),
        "OpDef": (
            ("name", 1, "string"),
            ("type", 2, "string"),
            ("input", 5, "*string"),
            ("attr", 10, "*AttrEntry"),
            ("id", 21, "int64"),
            ("stream_id", 22, "int64"),
            ("input_name", 23, "*string"),
            ("src_name", 24, "*string"),
            ("src_index", 25, "*int64"),
            ("dst_name", 26, "*string"),
            ("dst_index", 27, "*int64"),
            ("is_input_const", 32, "*bool"),
            ("input_desc", 33, "*TensorDescriptor"),
            ("output_desc", 34, "*TensorDescriptor"),
            ("subgraph_name", 35, "*string"),
        ),
        "TensorDescriptor": (
            ("name", 1, "string"),
            ("dtype", 2, "#DataType"),
            ("shape", 3, "ShapeDef"),
            ("layout", 4, "string"),
            ("attr", 5, "*AttrEntry"),
            ("size", 10, "int64"),
            ("device_type", 14, "string"),
            ("real_dim_cnt", 16, "int64"),
        ),
        "ShapeDef": (("dim", 1, "*int64"),),
        "AttrEntry": (("key", 1, "string"), ("value", 2, "AttrDef")),
        # One of these is set; text and JSON need no oneof for that.
        "AttrDef": (
            ("list", 1, "ListValue"),
            ("s", 2, "string"),
            ("i", 3, "int64"),
            ("f", 4, "float"),
            ("b", 5, "bool"),
        ),
        "ListValue": (
            ("s", 2, "*string"),
            ("i", 3, "*int64"),
            ("f", 4, "*float"),
            ("b", 5, "*bool"),
            ("val_type", 20, "#ListValueType"),
        ),
    }
)
_LIST_TYPES: Final = {
    "VT_LIST_NONE": 0,
    "VT_LIST_STRING": 1,
    "VT_LIST_INT": 2,
    "VT_LIST_FLOAT": 3,
    "VT_LIST_BOOL": 4,
}


def model_def() -> Any:
    """The class of the message in a graph file."""
    return _classes()["ModelDef"]


@cache
def _classes() -> Mapping[str, Any]:
    return message_classes(
        _MESSAGES,
        package="ge.proto",
        file="opdump/ge_ir.proto",
        syntax="proto2",
        enums={
            "DataType": {f"DT_{kind.name}": number for number, kind in DATA_TYPES.items()},
            "ListValueType": _LIST_TYPES,
        },
    )
