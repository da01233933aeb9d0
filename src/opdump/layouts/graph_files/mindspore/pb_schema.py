"""The schema of `debugger.ModelProto`, built on first use.

Field numbers come from MindSpore's public `debug_graph.proto`; fields that no dump uses are left out, and protobuf keeps unknown
fields. Enumerations are declared as plain integers, which have the same bytes: a number that a later version adds is kept. Text
is declared as bytes, again the same on disk, because protobuf versions treat invalid UTF-8 differently. The descriptors are in a
separate pool, so that another library may load its own copy of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from opdump.protobuf_messages import Fields, message_classes

_FILE: Final = "opdump/debug_graph.proto"
_PACKAGE: Final = "debugger"

_MESSAGES: Final[Mapping[str, Fields]] = MappingProxyType(
    {
        "ModelProto": (("ir_version", 1, "int64"), ("graph", 4, "GraphProto")),
        "GraphProto": (
            ("node", 1, "*NodeProto"),
            ("name", 2, "bytes"),
            ("parameters", 3, "*ParameterProto"),
            ("outputs", 4, "*OutputProto"),
            ("const_vals", 5, "*NamedValueProto"),
            ("root_name", 6, "bytes"),
        ),
        "NodeProto": (
            ("input", 1, "*InputProto"),
            ("name", 2, "bytes"),
            ("op_type", 3, "bytes"),
            ("scope", 4, "bytes"),
            ("attribute", 5, "*AttributeProto"),
            ("output_type", 6, "TypeProto"),
            ("full_name", 8, "bytes"),
            ("source_address", 9, "bytes"),
        ),
        "InputProto": (("name", 1, "bytes"), ("type", 2, "int32")),
        "AttributeProto": (("name", 1, "bytes"), ("value", 2, "ValueProto")),
        "ParameterProto": (("name", 1, "bytes"), ("type", 2, "TypeProto")),
        "OutputProto": (("name", 1, "bytes"), ("type", 2, "TypeProto")),
        "NamedValueProto": (("key", 1, "bytes"), ("value", 2, "ValueProto"), ("full_name", 3, "bytes")),
        "ValueProto": (
            ("dtype", 1, "int32"),
            ("bool_val", 2, "bool"),
            ("int_val", 3, "int64"),
            ("uint_val", 4, "uint64"),
            ("float_val", 5, "float"),
            ("double_val", 6, "double"),
            ("str_val", 7, "bytes"),
            ("tensor_val", 8, "TensorProto"),
            ("values", 18, "*ValueProto"),
            ("dict_val", 19, "*NamedValueProto"),
            ("type_val", 20, "TypeProto"),
        ),
        "TensorProto": (("dims", 4, "*int64"), ("data_type", 5, "int32")),
        "TypeProto": (
            ("data_type", 1, "int32"),
            ("tensor_type", 2, "TensorType"),
            ("sequence_type", 3, "SequenceType"),
        ),
        "TensorType": (("elem_type", 1, "int32"), ("shape", 2, "TensorShapeProto")),
        "SequenceType": (("elem_types", 1, "*TypeProto"),),
        "TensorShapeProto": (("dim", 1, "*Dimension"),),
        "Dimension": (("size", 1, "int64"),),
    }
)


def model_proto() -> Any:
    """The message class of `debugger.ModelProto`."""
    return _classes()["ModelProto"]


@cache
def _classes() -> Mapping[str, Any]:
    return message_classes(_MESSAGES, package=_PACKAGE, file=_FILE, syntax="proto2")


def to_text(text: str) -> bytes:
    """Text for a field; lone surrogates, which represent undecodable bytes of a file name, are escaped."""
    return text.encode("utf-8", "backslashreplace")


def from_text(field: bytes) -> str:
    """Text of a field. Raises UnicodeDecodeError if it is not UTF-8."""
    return field.decode("utf-8")
