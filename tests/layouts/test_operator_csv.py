"""The csv of an operator, cell by cell as a device prints it; the expected lines were derived by hand from the
document.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opdump.kernels import summarise
from opdump.layouts.ascend.operator_files import decode_operator_csv, encode_operator_csv
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import DEVICE_DEFAULT, SummaryStatistics, device_extremes

_OP = OpRecord(op_type="Add", op_name="add", timestamp=1)
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
        op=_OP,
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
            TensorRecord(op=_OP, io="input", slot=4, dtype="complex64", shape=(3,), data_size=24),
            "Input,0,24,DT_COMPLEX64,ND,3,,,,,,,",
        ),
        (TensorRecord(op=_OP, io="input", slot=0, dtype="float32", shape=(0, 3)), "Input,0,0,DT_FLOAT,ND,0x3,,,,,,,"),
    ],
)
def test_what_the_classic_table_does_not_know_is_empty(tensor: TensorRecord, row: str) -> None:
    assert _row(tensor) == row


def test_a_choice_of_statistics_has_its_count_first_and_its_columns_in_a_fixed_order() -> None:
    tensors = [
        _tensor([1.0, 2.5], "bfloat16"),
        TensorRecord(op=_OP, io="input", slot=1, dtype="resource", shape=(), data_size=8),
        TensorRecord(op=_OP, io="input", slot=2, dtype="made_up", shape=(1,) * 26, data_size=4, format="made up"),
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
        TensorRecord(op=_OP, io="input", slot=1, dtype="resource", shape=(), data_size=8),
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
