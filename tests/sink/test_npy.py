"""npy files: the same bytes as MindSpore, readable by numpy, and never trusted."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.errors import CorruptDumpError
from opdump.npy_header import npy_header
from opdump.sink.npy import encode_npy, read_npy, read_npy_header

_TYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def _file(path: Path, array: npt.NDArray[Any]) -> Path:
    header, elements = encode_npy(array)
    path.write_bytes(header + elements.tobytes())
    return path


def test_header_is_mindspores_to_the_byte() -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), }"
    assert npy_header("<f4", (2, 3)) == b"\x93NUMPY\x01\x00v\x00" + text + b" " * (117 - len(text)) + b"\n"
    assert npy_header("|b1", ()).startswith(
        b"\x93NUMPY\x01\x00v\x00{'descr': '|b1', 'fortran_order': False, 'shape': (), }"
    )


@given(st.lists(st.integers(0, 10**9), max_size=40))
def test_header_is_a_multiple_of_64_with_padding(shape: list[int]) -> None:
    header = npy_header("<f8", shape)
    assert len(header) % 64 == 0
    assert header.endswith(b"\n")
    text = header[10:].rstrip(b" \n")
    assert (10 + len(text)) % 64 != 0 or header[10 + len(text) :] == b" " * 63 + b"\n"


def test_header_over_65535_bytes_is_of_version_2() -> None:
    header = npy_header("<f4", [1] * 40_000)
    assert header[6:8] == b"\x02\x00"
    assert struct.unpack_from("<I", header, 8)[0] == len(header) - 12
    assert len(header) % 64 == 0


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (3, 1, 70_000)], ids=str)
def test_numpy_and_opdump_read_every_type(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 2 if kind == "?" else 100, size=shape).astype(kind)
    path = _file(tmp_path / "x.npy", array)
    for found in (np.load(path), read_npy(path)):
        assert found.dtype == array.dtype
        assert found.shape == shape
        assert found.tobytes() == array.tobytes()


def test_views_and_foreign_orders_are_written_in_c_order(tmp_path: Path) -> None:
    base = np.arange(24, dtype=">f4").reshape(4, 6)
    for number, view in enumerate((base.T, base[::2, ::-1], np.broadcast_to(base[0], (3, 6)))):
        path = _file(tmp_path / f"{number}.npy", view)
        np.testing.assert_array_equal(np.load(path), view)
        assert read_npy_header(path).descr == "<f4"


def test_files_of_others_are_read_in_fortran_order_and_big_endian(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3, order="F")
    np.save(tmp_path / "x.npy", np.asfortranarray(array))
    np.testing.assert_array_equal(read_npy(tmp_path / "x.npy"), array)


def test_mindspores_bfloat16_is_widened(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, np.inf, np.nan], dtype="float32")
    (tmp_path / "x.npy").write_bytes(npy_header("<E2", (4,)) + (values.view("u4") >> 16).astype("u2").tobytes())
    assert read_npy_header(tmp_path / "x.npy").dtype == "bfloat16"
    np.testing.assert_array_equal(read_npy(tmp_path / "x.npy"), values)


def test_what_is_read_cannot_be_written(tmp_path: Path) -> None:
    for size in (4, 100_000):
        array = read_npy(_file(tmp_path / f"{size}.npy", np.zeros(size)))
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_an_empty_array_is_read(tmp_path: Path) -> None:
    assert read_npy(_file(tmp_path / "x.npy", np.zeros((0, 3), dtype="f4"))).shape == (0, 3)


@pytest.mark.parametrize("array", [np.array([{}], dtype=object), np.array(["a"]), np.zeros(2, dtype="f4,i4")], ids=repr)
def test_arrays_that_would_need_pickling_are_refused(array: npt.NDArray[Any]) -> None:
    with pytest.raises(TypeError, match="bool, integers, floats and complex"):
        encode_npy(array)


def _npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


HOSTILE = {
    "empty": (b"", "is not an npy file"),
    "another kind of file": (b"PK\x03\x04" + bytes(100), "is not an npy file"),
    "magic alone": (b"\x93NUMPY", "is not an npy file"),
    "unknown version": (b"\x93NUMPY\x09\x00" + bytes(64), "version 9.0"),
    "header longer than the file": (b"\x93NUMPY\x01\x00\xff\xff{}", "claims 65535 bytes"),
    "version 2 header of 4 GiB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "claims 4294967295 bytes"),
    "an object array": (
        _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"cos\nsystem\n"),
        "elements of type '|O'",
    ),
    "a structured array": (
        _npy(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", bytes(4)),
        "not of the form",
    ),
    "an expression as shape": (
        _npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2**9,), }\n", bytes(4)),
        "not of the form",
    ),
    "code for a header": (_npy(b"__import__('os').system('true')\n"), "not of the form"),
    "deep nesting": (_npy(b"{'descr': " + b"(" * 20_000 + b"}\n"), "not of the form"),
    "a missing key": (_npy(b"{'descr': '<f4', 'shape': (1,), }\n", bytes(4)), "not of the form"),
    "a key twice": (
        _npy(b"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", bytes(4)),
        "not of the form",
    ),
    "a petabyte": (
        _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1024,1024,1024,1024,1024,), }\n", bytes(8)),
        "asks for 9007199254741",
    ),
    "a size that overflows": (
        _npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296,4294967296,), }\n"),
        "the file was cut off",
    ),
    "a dimension of 1000 digits": (
        _npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 1000 + b",), }\n"),
        "has the invalid shape",
    ),
    "a negative dimension": (
        _npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n", bytes(4)),
        "not of the form",
    ),
    "elements missing": (npy_header("<f4", (4,)) + bytes(12), "the file was cut off"),
    "elements too many": (npy_header("<f4", (4,)) + bytes(17), "the file was cut off"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    for read in (read_npy, read_npy_header):
        with pytest.raises(CorruptDumpError, match=r"bad\.npy") as caught:
            read(path)
        assert message in str(caught.value)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_what_is_no_regular_file_is_refused_without_waiting(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "bad.npy")
    with pytest.raises(CorruptDumpError, match="not a regular file"):
        read_npy(tmp_path / "bad.npy")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptDumpError, match=r"gone\.npy: cannot be opened"):
        read_npy(tmp_path / "gone.npy")


@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic_give_an_array_or_the_one_error(tail: bytes) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"opdump-any-bytes-{os.getpid()}.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + tail)
    try:
        read_npy(path)
    except CorruptDumpError:
        pass
    finally:
        path.unlink()
