"""Converts attribute values between JSON and `debugger.ValueProto`.

DumpParser of MindSpore Insight stops at an attribute of an unknown type, including dictionaries, and reads only `float_val`. So
floats are written to both of their fields, and a value without a plain type becomes JSON text.
"""

from __future__ import annotations

import json
from typing import Any, Final

from opdump.layouts.graph_files.mindspore import dtypes
from opdump.layouts.graph_files.mindspore.pb_schema import from_text, to_text

_BOOL: Final = 1
_INT64: Final = 5
_FLOAT64: Final = 12
_STRING: Final = 13
_TUPLE: Final = 31
_LIST: Final = 32
_DICT: Final = 33
_TYPE: Final = 39
_SIGNED: Final = range(2, 6)
_UNSIGNED: Final = range(6, 10)
_FLOATS: Final = range(10, 13)


def is_plain(value: Any) -> bool:
    """Whether the value has a type in `ValueProto` that existing readers support."""
    if value is None or isinstance(value, (bool, float, str)):
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, (list, tuple)) and all(map(is_plain, value))


def fill_value(proto: Any, value: Any) -> None:
    """Write a value into a `ValueProto`; one that is not plain as JSON text."""
    if value is None:
        proto.dtype = 0
    elif isinstance(value, bool):
        proto.dtype, proto.bool_val = _BOOL, value
    elif isinstance(value, float):
        proto.dtype, proto.double_val, proto.float_val = _FLOAT64, value, _as_float32(value)
    elif isinstance(value, str):
        proto.dtype, proto.str_val = _STRING, to_text(value)
    elif not is_plain(value):
        proto.dtype, proto.str_val = _STRING, to_text(json.dumps(value, default=str))
    elif isinstance(value, int):
        proto.dtype, proto.int_val = _INT64, value
    else:
        proto.dtype = _LIST
        for element in value:
            fill_value(proto.values.add(), element)


def read_value(proto: Any) -> Any:
    """The JSON value of a `ValueProto`; the name for a type, None for an unknown kind."""
    kind = proto.dtype
    if kind == _BOOL:
        return proto.bool_val
    if kind in _SIGNED:
        return proto.int_val
    if kind in _UNSIGNED:
        return proto.uint_val
    if kind in _FLOATS:
        return proto.double_val if proto.HasField("double_val") else proto.float_val
    if kind == _STRING:
        return from_text(proto.str_val)
    if kind in (_TUPLE, _LIST):
        return [read_value(element) for element in proto.values]
    if kind == _DICT:
        return {from_text(item.key): read_value(item.value) for item in proto.dict_val}
    if kind == _TYPE:
        return dtypes.from_pb_number(proto.type_val.data_type)
    return None


def _as_float32(value: float) -> float:
    """The value, or an infinity if float32 cannot represent it, because protobuf versions treat it differently."""
    limit = 3.4028234663852886e38
    return value if not abs(value) > limit else float("inf") if value > 0 else float("-inf")
