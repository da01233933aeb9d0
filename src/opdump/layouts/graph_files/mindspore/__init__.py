"""Writes and reads the files that describe a graph in a MindSpore dump: `.ir`, `.pb` and the two execution orders."""

from opdump.layouts.graph_files.mindspore.ir import decode_ir, encode_ir
from opdump.layouts.graph_files.mindspore.pb import decode_pb, encode_pb
from opdump.layouts.graph_files.mindspore.spelling import (
    EXECUTION_ORDER_HEADER,
    decode_execution_history,
    decode_execution_order,
    encode_execution_history,
    encode_execution_order,
)

__all__ = [
    "EXECUTION_ORDER_HEADER",
    "decode_execution_history",
    "decode_execution_order",
    "decode_ir",
    "decode_pb",
    "encode_execution_history",
    "encode_execution_order",
    "encode_ir",
    "encode_pb",
]
