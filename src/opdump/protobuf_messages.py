"""Builds protobuf messages from a table when they are first needed: no generated code, any version of protobuf."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from google.protobuf import descriptor_pb2

Fields = tuple[tuple[str, int, str], ...]
"""Name, number and type of each field; "*" before a type repeats it, a capital letter starts a message of the same table,
"#" an enumeration."""
Enums = Mapping[str, Mapping[str, int]]
"""Names and numbers of enumerations; the first number is the default."""


def load_protobuf() -> None:
    """Imports protobuf now, not with the first message.

    A capture does this before the program continues: `torch.profiler` with stacks records what an import runs, and keeps the addresses of names that
    are freed after the import.
    """
    for name in ("descriptor_pb2", "descriptor_pool", "message_factory"):
        importlib.import_module(f"google.protobuf.{name}")


def message_classes(
    messages: Mapping[str, Fields],
    *,
    package: str,
    file: str,
    syntax: Literal["proto2", "proto3"],
    enums: Enums = MappingProxyType({}),
) -> Mapping[str, Any]:
    """The classes of all messages, by their names. Their descriptors are in a separate pool, so that another library may load its own
    copy.

    Repeated numbers are packed in proto3; either form is read. Keep references to all classes if you parse many messages: protobuf creates
    the class of an inner message again each time it is no longer referenced.
    """
    from google.protobuf import descriptor_pool, message_factory  # slow to import, and rarely needed

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file_descriptor(messages, package, file, syntax, enums).SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _file_descriptor(
    messages: Mapping[str, Fields], package: str, file: str, syntax: str, enums: Enums
) -> descriptor_pb2.FileDescriptorProto:
    from google.protobuf import descriptor_pb2

    scalar = descriptor_pb2.FieldDescriptorProto
    types = {name.removeprefix("TYPE_").lower(): number for name, number in scalar.Type.items()}
    described = descriptor_pb2.FileDescriptorProto(name=file, package=package, syntax=syntax)
    for enum_name, values in enums.items():
        enum = described.enum_type.add(name=enum_name)
        for value_name, number in values.items():
            enum.value.add(name=value_name, number=number)
    for message_name, fields in messages.items():
        message = described.message_type.add(name=message_name)
        for name, number, kind in fields:
            label = scalar.LABEL_REPEATED if kind.startswith("*") else scalar.LABEL_OPTIONAL
            element = kind.lstrip("*")
            field = message.field.add(name=name, number=number, label=label)
            if element in types:
                field.type = types[element]
            else:
                field.type = scalar.TYPE_ENUM if element.startswith("#") else scalar.TYPE_MESSAGE
                field.type_name = f".{package}.{element.lstrip('#')}"
    return described
