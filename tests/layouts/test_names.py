"""One grammar for the file names of both generations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.layouts.mindspore_sync.files import (
    FileName,
    dtype_of_token,
    dtype_token,
    op_name_in_files,
    parse_file_name,
    sanitise,
)
from opdump.testing.stand_ins import DTYPES

_PLAIN = st.text(
    st.characters(exclude_characters='/\\. ",\x7f', exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30
)


def test_the_documented_example_is_parsed() -> None:
    name = "Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.npy"
    parsed = FileName("Conv2D", "Conv2D-op12", 0, 0, 1623124369613540, "output", 0, "DefaultFormat")
    assert parse_file_name(name) == parsed
    assert str(parsed) == name


def test_a_name_of_mindspore_2_10() -> None:
    name = "MatMul.Default_fc-Dense_MatMul-op0.0.0.1795247154245448.input.1.DefaultFormat.Float32.npy"
    parsed = parse_file_name(name)
    assert parsed == FileName(
        "MatMul", "Default_fc-Dense_MatMul-op0", 0, 0, 1795247154245448, "input", 1, "DefaultFormat", "Float32"
    )
    assert str(parsed) == name


def test_ascend_streams_and_formats() -> None:
    parsed = parse_file_name("Conv2D.Default_Conv2D-op1.65535.7.161243956333802.input.0.NC1HWC0.float16.npy")
    assert parsed is not None
    assert (parsed.task_id, parsed.stream_id, parsed.format, parsed.dtype) == (65535, 7, "NC1HWC0", "float16")


@given(
    st.builds(
        FileName,
        op_type=_PLAIN,
        op_name=_PLAIN,
        task_id=st.integers(0, 10**9),
        stream_id=st.integers(0, 10**9),
        timestamp=st.integers(0, 10**18),
        io=st.sampled_from(["input", "output"]),
        slot=st.integers(0, 999),
        format=_PLAIN,
        dtype=st.one_of(st.just(""), _PLAIN),
    )
)
def test_parsing_gives_back_what_was_printed(name: FileName) -> None:
    assert parse_file_name(str(name)) == name


@given(st.text(max_size=60))
def test_what_is_sanitised_can_stand_in_a_name(text: str) -> None:
    name = FileName(sanitise(text), sanitise(text), 0, 0, 1, "input", 0, "DefaultFormat")
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    assert parse_file_name(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "statistic.csv",
        "1994743515.npy",
        "mapping.csv",
        "Conv2D.Conv2D-op12.0.0.x.output.0.DefaultFormat.npy",
        "Conv2D.Conv2D-op12.0.0.1.result.0.DefaultFormat.npy",
        "Conv2D.Conv2D-op12.0.0.1.output.-1.DefaultFormat.npy",
        "Conv2D.Conv2D-op12.0.0.1.output.0.DefaultFormat.npy.part",
        "Conv2D.a/../b.0.0.1.output.0.DefaultFormat.npy",
        "Conv2D.x.0.0.99999999999999999999999.output.0.DefaultFormat.npy",
        "Conv2D.x.0.0.\u0661.output.0.DefaultFormat.npy",
        "",
        ".npy",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert parse_file_name(name) is None


def test_mindspores_replacements() -> None:
    assert sanitise("Default/net-A/a\\b.c d") == "Default_net-A_a_b_c_d"


def test_mindspore_2_3_names_by_the_last_component_and_parameters_by_all() -> None:
    full = "Default/network-LeNet/conv1-Conv2d/Conv2D-op12"
    assert op_name_in_files("Conv2D", full, "mindspore-2.3") == "Conv2D-op12"
    assert op_name_in_files("Conv2D", full, "mindspore-2.10") == "Default_network-LeNet_conv1-Conv2d_Conv2D-op12"
    for naming in ("mindspore-2.3", "mindspore-2.10"):
        assert op_name_in_files("Parameter", "fc1.weight", naming) == "fc1_weight"
        assert op_name_in_files("Parameter", "a/b.weight", naming) == "a_b_weight"


@pytest.mark.parametrize(
    ("dtype", "token"),
    [
        ("float32", "Float32"),
        ("bfloat16", "BFloat16"),
        ("bool", "Bool"),
        ("uint8", "UInt8"),
        ("int64", "Int64"),
        ("complex64", "Complex64"),
        ("float8_e4m3fn", "Float8E4M3FN"),
    ],
)
def test_tokens_of_element_types(dtype: str, token: str) -> None:
    assert dtype_token(dtype) == token


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_read_in_either_spelling(dtype: str) -> None:
    assert dtype_of_token(dtype_token(dtype)) == dtype
    assert dtype_of_token(dtype) == dtype
