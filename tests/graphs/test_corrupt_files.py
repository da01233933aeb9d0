"""A corrupt file raises an error that names the place."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.errors import CorruptDumpError
from opdump.layouts.graph_files.mindspore import (
    decode_execution_history,
    decode_execution_order,
    decode_ir,
    decode_pb,
    encode_ir,
    encode_pb,
)
from opdump.layouts.graph_files.mindspore.pb import model_proto
from tests.graphs.examples import DATA, small_graph


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x01", b"not a protobuf", b"\x22\xff\xff\xff\xff\x7f", b"\x22\x02\x0a\x00"]
)
def test_bytes_without_a_graph_are_no_pb_file(data: bytes) -> None:
    with pytest.raises(CorruptDumpError, match=r"g\.pb"):
        decode_pb(data, where="g.pb")


def test_a_pb_file_that_was_cut_off_is_corrupt_wherever_it_was_cut() -> None:
    data = (DATA / "ms210_constants/ms_output_trace_code_graph_0.pb").read_bytes()
    for length in range(0, len(data) - 1, 37):
        with pytest.raises(CorruptDumpError):
            decode_pb(data[:length])


def test_a_node_without_a_full_name_is_named_by_its_number_and_type() -> None:
    model = model_proto()()
    model.graph.node.add(name=b"7", op_type=b"Conv2D")
    with pytest.raises(CorruptDumpError, match=r"node 7 \(Conv2D\) has no full name"):
        decode_pb(model.SerializeToString())


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"phase":"sideways"}', '{"phase":"forward","slots":["x"]}', '{"phase":"forward","inputs":{"0":1}}'],
)
def test_a_record_that_does_not_fit_its_node_is_corrupt(text: str) -> None:
    model = model_proto()()
    node = model.graph.node.add(name=b"1", op_type=b"add", full_name=b"add-op0")
    node.input.add(name=b"")
    attribute = node.attribute.add(name=b"opdump.record")
    attribute.value.dtype, attribute.value.str_val = 13, text.encode()
    with pytest.raises(CorruptDumpError, match="add-op0"):
        decode_pb(model.SerializeToString())


def test_an_ir_file_that_was_cut_off_is_corrupt() -> None:
    data = encode_ir(small_graph())
    for length in range(0, len(data) - 2, 11):
        with pytest.raises(CorruptDumpError, match="subgraph"):
            decode_ir(data[:length])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("  %0(a) = Add(%1)\n      : () -> ()", "line 2.*no full name"),
        ("  %0(a) = Add(%1\n      # Fullname with scope: (a-op0)", "line 2.*a-op0.*arguments is not closed"),
        ("  %0(a) = Add()\n      : (<Tensor[Float32) -> ()\n      # Fullname with scope: (a-op0)", "a-op0"),
        ("  %0(a) = Add() primitive_attrs: {a: (1\n      # Fullname with scope: (a-op0)", "primitive_attrs do not end"),
    ],
)
def test_a_broken_node_is_named_by_its_line(lines: str, message: str) -> None:
    with pytest.raises(CorruptDumpError, match=f"(?s){message}"):
        decode_ir(f"subgraph @g() {{\n{lines}\n}}\n".encode())


def test_other_text_and_other_bytes_are_no_ir_file() -> None:
    with pytest.raises(CorruptDumpError, match=r"g\.ir.*subgraph"):
        decode_ir(b"hello\n", where="g.ir")
    with pytest.raises(CorruptDumpError, match="UTF-8"):
        decode_ir(b"subgraph @g() {\n\xff\n}\n")


def test_an_execution_order_needs_its_header() -> None:
    with pytest.raises(CorruptDumpError, match="header"):
        decode_execution_order(b"Default/a-op0\n")
    with pytest.raises(CorruptDumpError, match="empty"):
        decode_execution_order(b"")
    with pytest.raises(CorruptDumpError, match="UTF-8"):
        decode_execution_order(b"\xff\xfe")


@pytest.mark.parametrize("line", ["one", "-1", "1.5", "\u0661", "9" * 30])
def test_a_history_has_step_numbers_alone(line: str) -> None:
    with pytest.raises(CorruptDumpError, match="line 2"):
        decode_execution_history(f"0\n{line}\n".encode())


@given(st.binary(max_size=200), st.integers(0, 5000))
def test_damaged_files_give_a_graph_or_the_error_and_nothing_else(noise: bytes, position: int) -> None:
    for data, decode in ((encode_pb(small_graph()), decode_pb), (encode_ir(small_graph()), decode_ir)):
        place = position % len(data)
        with contextlib.suppress(CorruptDumpError):
            decode(data[:place] + noise + data[place + len(noise) :])


def test_values_nested_without_end_do_not_exhaust_the_stack() -> None:
    brackets = "(" * 5000 + ")" * 5000
    text = f"subgraph @g() {{\n  %0(a) = Add() primitive_attrs: {{a: {brackets}}}\n      # Fullname with scope: (a-op0)\n}}\n"
    assert decode_ir(text.encode()).nodes[0].op_name == "a-op0"
    with pytest.raises(CorruptDumpError):
        decode_pb(b"\x22\x05\x0a\x03\x2a\x01\x12" * 1000)
    assert encode_pb(small_graph())
