"""Every code of every element type decodes to the value in the standards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.dtypes import widen
from opdump.dump_file import DATA_TYPES, DumpTensor, HeldBytes, data_type, data_type_number
from opdump.dump_file.elements import values_of_codes
from opdump.errors import UndecodableTensorError

TO_HOST = {
    "UNDEFINED": "int8",
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT16": "int16",
    "UINT16": "uint16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "BOOL": "bool",
    "DOUBLE": "float64",
    "STRING": "uint8",
    "DUAL_SUB_INT8": "int8",
    "DUAL_SUB_UINT8": "uint8",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "QINT8": "int8",
    "QINT16": "int16",
    "QINT32": "int32",
    "QUINT8": "uint8",
    "QUINT16": "uint16",
    "RESOURCE": "int64",
    "STRING_REF": "uint8",
    "DUAL": "uint8",
    "VARIANT": "uint8",
    "BF16": "float32",
    "INT4": "int8",
    "UINT1": "uint8",
    "INT2": "int8",
    "UINT2": "uint8",
    "COMPLEX32": "complex64",
    "HIFLOAT8": "float32",
    "FLOAT8_E5M2": "float32",
    "FLOAT8_E4M3FN": "float32",
    "FLOAT8_E8M0": "float32",
    "FLOAT6_E3M2": "float32",
    "FLOAT6_E2M3": "float32",
    "FLOAT4_E2M1": "float32",
    "FLOAT4_E1M2": "float32",
    "HIFLOAT4": "uint8",
    "HIFLOAT4_SCALE": "uint8",
}


def _tensor(name: str, shape: tuple[int, ...], data: bytes) -> DumpTensor:
    return DumpTensor("output", 0, data_type_number(name), 2, shape, HeldBytes(data))


def _host(name: str, shape: tuple[int, ...], data: bytes) -> npt.NDArray[Any]:
    return _tensor(name, shape, data).to_host()


@pytest.mark.parametrize("number", DATA_TYPES)
def test_every_type_has_its_numpy_type_and_empty_tensors_keep_it(number: int) -> None:
    kind = data_type(number)
    for shape in ((0,), (3, 0, 2)):
        empty = _host(kind.name, shape, b"")
        assert str(empty.dtype) == TO_HOST[kind.name]
        assert empty.shape == (shape if kind.bits and kind.name != "UNDEFINED" else (0,))
    full = _host(kind.name, (2,), bytes(range(32)))
    assert str(full.dtype) == TO_HOST[kind.name]
    with pytest.raises(ValueError, match="read-only"):
        full[0] = 1


def _by_definition() -> dict[int, float]:
    """HiFloat8 from value to code: the exponent determines its number of bits, and so does the dot."""
    codes = {"00000000": 0.0, "10000000": np.nan, "01101111": np.inf, "11101111": -np.inf}
    for sign, factor in (("0", 1.0), ("1", -1.0)):
        for mantissa in range(1, 8):
            codes.setdefault(f"{sign}0000{mantissa:03b}", factor * 2.0 ** (mantissa - 23))
        for exponent in range(-15, 16):
            taken = abs(exponent).bit_length()
            dot, mantissa_bits = {0: ("0001", 3), 1: ("001", 3), 2: ("01", 3), 3: ("10", 2), 4: ("11", 1)}[taken]
            stored = ("1" if exponent < 0 else "0") + f"{abs(exponent):b}"[1:] if exponent else ""
            for mantissa in range(1 << mantissa_bits):
                value = 2.0**exponent * (1 + mantissa / (1 << mantissa_bits))
                codes.setdefault(f"{sign}{dot}{stored}{mantissa:0{mantissa_bits}b}", factor * value)
    return {int(code, 2): value for code, value in codes.items()}


def test_hifloat8_is_as_its_paper_defines_it() -> None:
    expected = _by_definition()
    assert sorted(expected) == list(range(256))
    found = _host("HIFLOAT8", (256,), bytes(range(256)))
    np.testing.assert_array_equal(found, [np.float32(expected[code]) for code in range(256)])
    known = {0x01: 2.0**-22, 0x08: 1.0, 0x10: 2.0, 0x6E: 32768.0, 0x6F: np.inf, 0x88: -1.0, 0xEF: -np.inf}
    assert {code: found[code] for code in known} == known
    assert np.isnan(found[0x80])
    assert np.isfinite(found).sum() == 253


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("FLOAT8_E5M2", (5, 2, 15)),
        ("FLOAT8_E4M3FN", (4, 3, 7)),
        ("FLOAT6_E3M2", (3, 2, 3)),
        ("FLOAT6_E2M3", (2, 3, 1)),
        ("FLOAT4_E2M1", (2, 1, 1)),
        ("FLOAT4_E1M2", (1, 2, 1)),
    ],
)
def test_small_floats_are_sign_exponent_and_mantissa(name: str, bits: tuple[int, int, int]) -> None:
    exponent_bits, mantissa_bits, bias = bits
    values = values_of_codes(name)
    for code in range(1 << (1 + exponent_bits + mantissa_bits)):
        sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
        exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
        mantissa = (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
        expected = sign * (2.0 ** (exponent - bias) * (1 + mantissa) if exponent else 2.0 ** (1 - bias) * mantissa)
        if name == "FLOAT8_E5M2" and exponent == 31:
            expected = np.nan if mantissa else sign * np.inf
        if name == "FLOAT8_E4M3FN" and code & 0x7F == 0x7F:
            expected = np.nan
        np.testing.assert_array_equal(values[code], np.float32(expected))
        assert np.isnan(expected) or np.signbit(values[code]) == (sign < 0)


def test_e8m0_is_a_power_of_two() -> None:
    found = _host("FLOAT8_E8M0", (256,), bytes(range(256)))
    np.testing.assert_array_equal(found[:255].astype(np.float64), 2.0 ** np.arange(-127.0, 128.0))
    assert np.isnan(found[255])


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("FLOAT8_E5M2", "float8_e5m2"),
        ("FLOAT8_E4M3FN", "float8_e4m3fn"),
        ("FLOAT8_E8M0", "float8_e8m0fnu"),
        ("FLOAT6_E3M2", "float6_e3m2fn"),
        ("FLOAT6_E2M3", "float6_e2m3fn"),
        ("FLOAT4_E2M1", "float4_e2m1fn"),
        ("INT4", "int4"),
        ("INT2", "int2"),
        ("UINT2", "uint2"),
    ],
)
def test_ml_dtypes_reads_the_same_values(name: str, code: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, code))
    codes = np.arange(1 << data_type(data_type_number(name)).bits, dtype=np.uint8)
    np.testing.assert_array_equal(values_of_codes(name), codes.view(kind).astype(np.float32))


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    import ml_dtypes

    codes = np.arange(1 << 16, dtype=np.uint16)
    found = _host("BF16", (256, 256), codes.tobytes())
    np.testing.assert_array_equal(found.reshape(-1).view(np.uint32) >> 16, codes)
    np.testing.assert_array_equal(found.reshape(-1), codes.view(ml_dtypes.bfloat16).astype(np.float32))


def test_elements_of_less_than_a_byte_begin_with_the_low_bits_but_uint1() -> None:
    assert _host("INT4", (3,), b"\x21\x0f").tolist() == [1, 2, -1]
    assert _host("INT2", (5,), b"\xe4\x01").tolist() == [0, 1, -2, -1, 1]
    assert _host("UINT2", (4,), b"\xe4").tolist() == [0, 1, 2, 3]
    assert _host("UINT1", (9,), b"\xa1\x80").tolist() == [1, 0, 1, 0, 0, 0, 0, 1, 1]
    assert _host("FLOAT4_E2M1", (2,), b"\x71").tolist() == [0.5, 6.0]
    # Codes 1, 2, 3, 4 in three bytes, then 5: 2 ** -4 per step of the mantissa without an exponent.
    packed = (1 | 2 << 6 | 3 << 12 | 4 << 18).to_bytes(3, "little") + b"\x05"
    assert _host("FLOAT6_E2M3", (5,), packed).tolist() == [0.125, 0.25, 0.375, 0.5, 0.625]


def test_complex32_is_two_halves() -> None:
    assert _host("COMPLEX32", (1,), np.array([1.5, -2], np.float16).tobytes()).tolist() == [1.5 - 2j]


def test_an_empty_shape_is_a_scalar_or_all_that_is_there() -> None:
    assert _host("FLOAT", (), bytes(4)).shape == ()
    assert _host("FLOAT", (), bytes(12)).shape == (3,)
    assert _host("FLOAT", (), bytes(13)).shape == (3,)
    assert _host("FLOAT", (), b"").shape == (0,)
    assert _host("INT4", (), bytes(1)).shape == ()
    assert _host("UINT1", (), bytes(2)).shape == (16,)


def test_bytes_beyond_the_shape_are_padding() -> None:
    data = np.arange(16, dtype=np.int16).tobytes()
    assert _host("INT16", (2, 3), data).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert _host("INT4", (3,), bytes(32)).tolist() == [0, 0, 0]


def test_bytes_of_bool_are_kept() -> None:
    assert _host("BOOL", (3,), b"\x00\x01\x02").view(np.uint8).tolist() == [0, 1, 2]


def test_an_unknown_type_is_bytes() -> None:
    tensor = DumpTensor("output", 0, 99, 200, (2, 2), HeldBytes(b"12345"))
    assert (tensor.dtype, tensor.format_name) == ("type_99", "200")
    assert tensor.to_host().tolist() == list(b"12345")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3), r"output:0: 8 bytes of FLOAT hold 2 elements; its shape \(2, 3\) needs 6"),
        ((2**63,), r"its shape \(9223372036854775808,\) needs 9223372036854775808"),
        ((2**63, 2**63), "needs 85070591730234615865843651857942052864"),
        ((0, 2**63), r"numpy has no array of its shape \(0, 9223372036854775808\)"),
        ((0, 2**62, 2**62), "numpy has no array of its shape"),
        ((1,) * 65, "its shape has 65 dimensions; expected at most 64"),
        ((2**64 - 1,) * 100_000, "has 100000 dimensions"),
    ],
    ids=range(7),
)
def test_a_shape_that_does_not_fit_is_named(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UndecodableTensorError, match=message):
        _host("FLOAT", shape, bytes(8))


@pytest.mark.parametrize("size", [0, 1, 2, (1 << 15) + 1, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, (1 << 18) + 3])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["i1", "f4"])
def test_widening_is_a_table_look_up_for_any_number_of_bytes(size: int, width: int, dtype: str) -> None:
    if dtype == "f4" and width > 2:
        width //= 4
    codes = np.random.default_rng(0).integers(0, 256, size + 1).astype(np.uint8)[1:]  # at an odd address
    table = np.random.default_rng(1).integers(-128, 128, (256, width)).astype(dtype)
    np.testing.assert_array_equal(widen(codes, table), table[codes].reshape(-1))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 65_535, 65_536, 65_541, 200_001])
def test_six_bits_are_taken_from_any_number_of_bytes(count: int) -> None:
    codes = np.random.default_rng(count).integers(0, 64, count).astype(np.uint8)
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :6]
    found = _host("FLOAT6_E3M2", (count,), np.packbits(bits.reshape(-1), bitorder="little").tobytes() + b"padding")
    np.testing.assert_array_equal(found, values_of_codes("FLOAT6_E3M2")[codes])
