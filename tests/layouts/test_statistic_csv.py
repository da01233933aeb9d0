"""statistic.csv, and the csv of an operator: vectors written by hand from the specification."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opdump.errors import CorruptDumpError
from opdump.kernels import Summary, summarise
from opdump.layouts.ascend.operator_files import decode_operator_csv, encode_operator_csv
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder, decode_statistic_csv, merge_statistic_csv
from opdump.records import OpRecord, TensorRecord, format_statistic
from opdump.statistics import (
    DEVICE_DEFAULT,
    OWN,
    ElementStatistics,
    SummaryStatistics,
    device_extremes,
)
from tests.layouts.filing import rows_of

_START = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
_OP = OpRecord(op_type="MatMul", op_name="Default/fc/MatMul-op0", timestamp=1795247154245448)
_ARRAY = np.array([[0.449951171875, -1.0, 0.0], [2.0, np.float32(1e-9), 1234567.0]], dtype="float32")
_RECORD = TensorRecord(
    op=_OP,
    io="input",
    slot=1,
    dtype="float32",
    shape=(2, 3),
    data_size=24,
    statistics=SummaryStatistics(summarise(_ARRAY), ElementStatistics(("md5", "hash")).of(_ARRAY)),
)
_TWELVE = (
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
)


def _file(encoder: StatisticEncoder, *records: TensorRecord) -> str:
    return encoder.header + "".join(rows_of(encoder, _OP, "MatMul-op0", records))


def test_the_default_categories() -> None:
    assert _file(StatisticEncoder(("max", "min", "l2norm")), _RECORD) == (
        f"{_START},Max Value,Min Value,L2Norm Value\n"
        'MatMul,MatMul-op0,0,0,1795247154245448,input,1,24,float32,"(2,3)",1.23457e+06,-1,1.23457e+06\n'
    )


def test_all_twelve_documented_categories() -> None:
    md5 = ElementStatistics(("md5",)).of(_ARRAY)["md5"]
    assert _file(StatisticEncoder(_TWELVE), _RECORD) == (
        f"{_START},Max Value,Min Value,Avg Value,Count,Negative Zero Count,Positive Zero Count,NaN Count,"
        "Negative Inf Count,Positive Inf Count,Zero Count,MD5,L2Norm Value\n"
        'MatMul,MatMul-op0,0,0,1795247154245448,input,1,24,float32,"(2,3)",1.23457e+06,-1,205761,6,1,4,0,0,0,1,'
        f"{md5},1.23457e+06\n"
    )


def test_columns_come_in_the_users_order_and_once() -> None:
    encoder = StatisticEncoder(("l2norm", "hash:md5", "max", "md5", "hash:sha1", "hash"))
    assert encoder.header == f"{_START},L2Norm Value,MD5,Max Value,SHA1\n"
    assert len(decode_statistic_csv(_file(encoder, _RECORD).encode())[0].statistics) == 4


def test_nan_and_infinity_are_printed_as_c_prints_them() -> None:
    summary = Summary(4.0, 1.0, 1.0, 1.0, 0.0, 1.0, 2.0, math.nan, math.nan, math.nan, math.inf)
    record = replace(_RECORD, statistics=SummaryStatistics(summary))
    text = _file(StatisticEncoder(("max", "avg", "l2norm", "nan count")), record)
    assert text.endswith(',"(2,3)",nan,nan,inf,1\n')
    summary = summary._replace(max=math.inf, min=-math.inf, sum=1e-9)
    record = replace(_RECORD, statistics=SummaryStatistics(summary))
    assert _file(StatisticEncoder(("max", "min", "avg")), record).endswith(',"(2,3)",inf,-inf,2.5e-10\n')


def test_a_scalar_has_empty_parentheses() -> None:
    assert ',float32,"()",' in _file(StatisticEncoder(("max",)), replace(_RECORD, shape=()))


def test_the_trailing_comma_is_in_rows_alone() -> None:
    header, row = _file(StatisticEncoder(("max",), trailing_comma=True), _RECORD).splitlines()
    assert header.endswith("Max Value")
    assert row.endswith("1.23457e+06,")


def test_complex_and_skipped_tensors_have_no_row() -> None:
    encoder = StatisticEncoder(("max",))
    assert rows_of(encoder, _OP, "MatMul-op0", [replace(_RECORD, statistics={}), replace(_RECORD, skip="empty")]) == []


def test_a_statistic_that_was_not_taken_is_null() -> None:
    text = _file(StatisticEncoder(("md5", "max")), replace(_RECORD, statistics={"max": 1.5}))
    assert text.endswith('"(2,3)",null,1.5\n')
    assert decode_statistic_csv(text.encode())[0].statistics == {"max": 1.5}


def test_a_name_with_a_comma_is_quoted() -> None:
    text = StatisticEncoder(("max",)).header + "".join(rows_of(StatisticEncoder(("max",)), _OP, 'a,"b"', [_RECORD]))
    assert decode_statistic_csv(text.encode())[0].op_name == 'a,"b"'


@given(
    st.builds(
        Summary,
        *[st.integers(0, 2**53).map(float)] * 7,
        *[st.floats()] * 3,
        st.floats(min_value=0) | st.just(math.nan),
    ),
    st.permutations(list(OWN)),
)
def test_the_fast_way_prints_what_the_statistics_say(summary: Summary, categories: list[str]) -> None:
    encoder = StatisticEncoder(categories)
    statistics = SummaryStatistics(summary, {"md5": "0" * 32, "hash": "1" * 40, "xxh3": "2" * 32})
    row = "".join(rows_of(encoder, _OP, "x", [replace(_RECORD, statistics=statistics)]))
    expected = ",".join(format_statistic(statistics[name]) for name in encoder.categories)
    assert row == f'MatMul,x,0,0,1795247154245448,input,1,24,float32,"(2,3)",{expected}\n'


@pytest.mark.parametrize("ending", ["", ","])
def test_the_fixed_header_before_2_3_is_read(ending: str) -> None:
    text = (
        f"{_START},Max Value,Min Value,Avg Value,Count,Negative Zero Count,Positive Zero Count,NaN Count,"
        "Negative Inf Count,Positive Inf Count,Zero Count\n"
        f'Conv2D,Conv2D-op12,0,0,1623124369613540,output,0,12,Float32,"(3,)",1,-1,0,3,1,1,0,0,0,1{ending}\n'
    )
    (row,) = decode_statistic_csv(text.encode())
    assert (row.op_type, row.op_name, row.shape, row.dtype) == ("Conv2D", "Conv2D-op12", (3,), "float32")
    assert row.statistics["zero count"] == 1
    assert len(row.statistics) == 10


def test_headings_in_any_case_and_nulls_are_read() -> None:
    text = f'{_START.upper()},NAN COUNT,Max value\nA,B,1,2,3,input,0,4,bool,"()",null,inf,\n'
    (row,) = decode_statistic_csv(text.encode())
    assert row.statistics == {"max": math.inf}


def test_rows_are_appended_under_the_same_header() -> None:
    encoder = StatisticEncoder(("max",))
    first = _file(encoder, _RECORD).encode()
    rows = "".join(rows_of(encoder, _OP, "again", [_RECORD])).encode()
    merged = merge_statistic_csv(first, encoder.header, rows, where="statistic.csv")
    assert merged == first + rows


def test_rows_of_a_run_with_other_categories_keep_their_own_columns() -> None:
    old = _file(StatisticEncoder(("max", "min"), trailing_comma=True), _RECORD).encode()
    encoder = StatisticEncoder(("l2norm", "max"))
    rows = "".join(rows_of(encoder, _OP, "new", [_RECORD])).encode()
    merged = merge_statistic_csv(old, encoder.header, rows, where="statistic.csv")
    assert merged.decode().splitlines()[0] == f"{_START},L2Norm Value,Max Value,Min Value"
    first, second = decode_statistic_csv(merged)
    assert (first.op_name, set(first.statistics)) == ("MatMul-op0", {"max", "min"})
    assert (second.op_name, set(second.statistics)) == ("new", {"max", "l2norm"})
    assert first.shape == second.shape == (2, 3)


HOSTILE = {
    "no text": (b"\xff\xfe\x00", "is not UTF-8"),
    "a NUL": (f"{_START}\nA\0,B\n".encode(), "not a row of a table"),
    "no header": (b"", "no column 'Op Type'"),
    "another table": (b"name,value\na,1\n", "no column 'Op Type'"),
    "a row cut off": (f"{_START},Max Value\nA,B,0,0,1,inp".encode(), "line 2: 6 cells for 11 headings"),
    "an open quote": (f'{_START}\nA,B,0,0,1,input,0,4,bool,"(2,'.encode(), "line 2"),
    "a word for a slot": (f'{_START}\nA,B,0,0,1,input,x,4,bool,"()"\n'.encode(), "Slot is 'x'"),
    "a negative size": (f'{_START}\nA,B,0,0,1,input,0,-4,bool,"()"\n'.encode(), "Data Size is '-4'"),
    "a number of 100 digits": (f'{_START}\nA,B,0,0,{"9" * 100},input,0,4,bool,"()"\n'.encode(), "Timestamp is"),
    "another direction": (f'{_START}\nA,B,0,0,1,sideways,0,4,bool,"()"\n'.encode(), "IO is 'sideways'"),
    "a shape of words": (f'{_START}\nA,B,0,0,1,input,0,4,bool,"(a,b)"\n'.encode(), "Shape is '(a,b)'"),
    "a shape of 100 dimensions": (f'{_START}\nA,B,0,0,1,input,0,4,bool,"({"1," * 100})"\n'.encode(), "Shape is"),
    "a word for a maximum": (f'{_START},Max Value\nA,B,0,0,1,input,0,4,bool,"()",big\n'.encode(), "Max Value is 'big'"),
    "a line of a million letters": (f"{_START}\n{'A' * (1 << 21)}\n".encode(), "not a row of a table"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tables_are_refused_with_the_line(name: str) -> None:
    content, message = HOSTILE[name]
    with pytest.raises(CorruptDumpError) as caught:
        decode_statistic_csv(content, where="rank_0/Net/0/0/statistic.csv")
    assert "rank_0/Net/0/0/statistic.csv" in str(caught.value)
    assert message in str(caught.value)


@given(st.text(alphabet='",()\n0123456789abc-', max_size=200))
def test_any_rows_give_records_or_the_one_error(text: str) -> None:
    with suppress(CorruptDumpError):
        decode_statistic_csv(f"{_START},Max Value\n{text}".encode())


_ADD = OpRecord(op_type="Add", op_name="add", timestamp=1)
_CLASSIC = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,"
    "Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count"
)


def _tensor(values: Any, dtype: str, *, io: Any = "input", slot: int = 0, **fields: Any) -> TensorRecord:
    if dtype == "bfloat16":
        raw = np.asarray(values).astype(ml_dtypes.bfloat16)
        array, summary = raw.astype("float32"), summarise(raw.view(np.uint16), "bfloat16")
        size = raw.nbytes
    else:
        array = np.asarray(values).astype(dtype)
        summary, size = summarise(array), array.nbytes
    return TensorRecord(
        op=_ADD,
        io=io,
        slot=slot,
        dtype=dtype,
        shape=fields.pop("shape", array.shape),
        data_size=size,
        statistics=fields.pop("statistics", SummaryStatistics(summary, None, device_extremes(array, summary))),
        **fields,
    )


def _row(tensor: TensorRecord, categories: tuple[str, ...] = DEVICE_DEFAULT) -> str:
    return encode_operator_csv([tensor], categories).decode().splitlines()[1]


def test_the_classic_table() -> None:
    tensors = [
        _tensor([[1.0], [2.0]], "float16", io="output"),
        _tensor([[1.5, -2.0, 0.25], [0.0, 1.0, 0.75]], "float32"),
        _tensor(3, "int32", slot=1, format="NC1HWC0"),
    ]
    assert encode_operator_csv(tensors, DEVICE_DEFAULT).decode() == (
        f"{_CLASSIC}\n"
        "Input,0,24,DT_FLOAT,ND,2x3,1.5,-2,0.25,6,0,0,0\n"
        "Input,1,4,DT_INT32,NC1HWC0,-,3,3,3,1,0,0,0\n"
        "Output,0,4,DT_FLOAT16,ND,2x1,2,1,1.5,2,0,0,0\n"
    )


@pytest.mark.parametrize(
    ("values", "dtype", "cells"),
    [
        # a NaN in element 0 is kept, later ones are skipped
        ([math.nan, 3, 1], "float32", "nan,nan,nan,3,1,0,0"),
        ([3, math.nan, 1], "float32", "3,1,nan,3,1,0,0"),
        ([3, 1, math.nan, math.nan], "float16", "3,1,nan,4,2,0,0"),
        ([math.nan], "float64", "nan,nan,nan,1,1,0,0"),
        # an infinity alone determines the average; both signs yield NaN
        ([math.inf, 1], "float32", "inf,1,inf,2,0,0,1"),
        ([-math.inf, 1], "float32", "1,-inf,-inf,2,0,1,0"),
        ([-math.inf, math.inf], "float32", "inf,-inf,nan,2,0,1,1"),
        ([1, math.nan, math.inf], "float32", "inf,1,nan,3,1,0,1"),
        # six digits as with %g
        ([1234567.0, 1e-9], "float64", "1.23457e+06,1e-09,617284,2,0,0,0"),
        ([1e300, -1e-300], "float64", "1e+300,-1e-300,5e+299,2,0,0,0"),
        # the sign of the first zero
        ([-0.0, 0.0], "float32", "-0,-0,0,2,0,0,0"),
        ([0.0, -0.0], "float32", "0,0,0,2,0,0,0"),
        ([-1.0, -0.0, 0.0], "float32", "-0,-1,-0.333333,3,0,0,0"),
        ([math.nan, -0.0], "float32", "nan,nan,nan,2,1,0,0"),
        # integers keep their digits
        ([-128, 127], "int8", "127,-128,-0.5,2,0,0,0"),
        ([200, 255], "uint8", "255,200,227.5,2,0,0,0"),
        ([2**63 - 1, -(2**63) + 1], "int64", "9223372036854775807,-9223372036854775807,0,2,0,0,0"),
        ([2**53 + 1], "int64", "9007199254740993,9007199254740993,9.0072e+15,1,0,0,0"),
        ([1234567], "int32", "1234567,1234567,1.23457e+06,1,0,0,0"),
        ([True, False, True, True], "bool", "1,0,0.75,4,0,0,0"),
        ([True, True], "bool", "1,1,1,2,0,0,0"),
    ],
)
def test_classic_numbers(values: Any, dtype: str, cells: str) -> None:
    assert _row(_tensor(values, dtype)).split(",", 6)[6] == cells


def test_uint64_beyond_the_doubles() -> None:
    assert _row(_tensor(np.array([2**64 - 1, 2**64 - 2], np.uint64), "uint64")).split(",")[6:8] == [
        "18446744073709551615",
        "18446744073709551614",
    ]


@pytest.mark.parametrize(
    ("tensor", "row"),
    [
        (_tensor([1.0], "bfloat16"), "Input,0,2,-,ND,1,,,,,,,"),
        (_tensor([1.0], "float32", format="FRACTAL_Z_G"), "Input,0,4,DT_FLOAT,FRACTAL_Z_G,1,1,1,1,1,0,0,0"),
        (_tensor([1.0], "float32", format="ND_RNN_BIAS"), "Input,0,4,DT_FLOAT,-,1,1,1,1,1,0,0,0"),
        (_tensor([1.0], "float32", statistics={}), "Input,0,4,DT_FLOAT,ND,1,,,,,,,"),
        (
            TensorRecord(op=_ADD, io="input", slot=4, dtype="complex64", shape=(3,), data_size=24),
            "Input,0,24,DT_COMPLEX64,ND,3,,,,,,,",
        ),
        (
            TensorRecord(op=_ADD, io="input", slot=0, dtype="float32", shape=(0, 3)),
            "Input,0,0,DT_FLOAT,ND,0x3,,,,,,,",
        ),
    ],
)
def test_what_the_classic_table_does_not_know_is_empty(tensor: TensorRecord, row: str) -> None:
    assert _row(tensor) == row


def test_a_choice_of_statistics_has_its_count_first_and_its_columns_in_a_fixed_order() -> None:
    tensors = [
        _tensor([1.0, 2.5], "bfloat16"),
        TensorRecord(op=_ADD, io="input", slot=1, dtype="resource", shape=(), data_size=8),
        TensorRecord(op=_ADD, io="input", slot=2, dtype="made_up", shape=(1,) * 26, data_size=4, format="made up"),
        _tensor([3.0, math.nan, 4.0], "float32", io="output"),
        _tensor([2**62 + 1, 0], "int64", io="output", slot=1),
    ]
    assert encode_operator_csv(tensors, ("l2norm", "nan count", "max")).decode() == (
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value,Nan Count,l2norm\n"
        "Input,0,4,DT_BF16,ND,2,2,2.5,0,2.69258\n"
        "Input,1,8,DT_RESOURCE,ND,-,NA,NA,NA\n"
        "Input,2,4,UNKNOW,UNKNOW,NA,NA,NA,NA\n"
        "Output,0,12,DT_FLOAT,ND,3,3,4,1,nan\n"
        "Output,1,16,DT_INT64,ND,2,2,4611686018427387905,0,4.61169e+18\n"
    )


def test_the_default_six_in_any_order_are_the_classic_table() -> None:
    table = encode_operator_csv([_tensor([1.0], "float32")], tuple(reversed(DEVICE_DEFAULT)))
    assert table.decode().splitlines()[0] == _CLASSIC


@pytest.mark.parametrize("categories", [DEVICE_DEFAULT, ("max", "l2norm"), ("nan count",)])
def test_what_is_written_is_read(categories: tuple[str, ...]) -> None:
    tensors = [
        _tensor([1.5, -2.0], "float32"),
        TensorRecord(op=_ADD, io="input", slot=1, dtype="resource", shape=(), data_size=8),
        _tensor([[1, 0]], "bool", io="output"),
    ]
    rows = decode_operator_csv(encode_operator_csv(tensors, categories), where="here")
    assert [(row.io, row.data_size, row.dtype, row.shape) for row in rows] == [
        (tensor.io, tensor.data_size, tensor.dtype, tensor.shape) for tensor in tensors
    ]
    for row, tensor in zip(rows, tensors, strict=True):
        for name in categories if tensor.statistics else ():
            assert row.statistics[name] == pytest.approx(tensor.statistics[name], rel=1e-5)


_SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0])
_FLOATS = st.sampled_from(["float16", "float32", "float64"]).flatmap(
    lambda dtype: arrays.arrays(dtype, st.integers(1, 12), elements=_SPECIAL)
)
_WHOLE = st.sampled_from(["int64", "uint64", "int8", "bool"]).flatmap(
    lambda dtype: arrays.arrays(dtype, st.integers(1, 12))
)


@given(array=_FLOATS | _WHOLE)
def test_extremes_are_those_of_a_walk_over_the_elements(array: npt.NDArray[Any]) -> None:
    greatest = least = array[0]
    for element in array[1:]:
        greatest = max(greatest, element)
        least = min(least, element)
    summary = summarise(array)
    found = device_extremes(array, summary) or (summary.max, summary.min)
    for one, other in zip(found, (greatest.item(), least.item()), strict=True):
        if isinstance(other, float):
            assert math.isnan(one) == math.isnan(other)
            assert math.isnan(one) or (one, math.copysign(1, one)) == (other, math.copysign(1, other))
        else:
            assert int(one) == other


def test_a_zero_far_from_the_start_has_its_sign() -> None:
    array = np.full(50_000, -1.0, "float32")
    array[40_000] = -0.0
    array[40_001] = 0.0
    found = device_extremes(array, summarise(array))
    assert found is not None
    assert (math.copysign(1, found[0]), found) == (-1.0, (0.0, -1.0))


def test_no_elements_have_no_extremes() -> None:
    empty = np.empty(0, "float32")
    assert device_extremes(empty, summarise(empty)) is None
