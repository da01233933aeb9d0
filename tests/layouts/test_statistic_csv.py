"""statistic.csv: vectors written by hand from the specification."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.errors import CorruptDumpError
from opdump.kernels import Summary, summarise
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder, decode_statistic_csv, merge_statistic_csv
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import OWN, ElementStatistics, SummaryStatistics, format_statistic
from tests.layouts.statistic_rows import rows_of

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
