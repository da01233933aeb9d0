"""Reading returns what was written, and the bytes equal those of a device."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opdump.dump_file import (
    DATA_TYPES,
    DumpBlob,
    DumpFile,
    DumpTensor,
    HeldBytes,
    data_type_number,
    read_dump_file,
    write_dump_file,
)
from opdump.dump_file.elements import encode_elements, values_of_codes
from opdump.errors import DumpPathError, UndecodableTensorError, UnknownFormatError
from tests.dump_file.samples import DEVICE, dump_files, encoded

NUMPY = ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL")
OTHERS = {
    "COMPLEX64": "c8",
    "COMPLEX128": "c16",
    "DUAL_SUB_INT8": "i1",
    "DUAL_SUB_UINT8": "u1",
    "QINT8": "i1",
    "QINT16": "i2",
    "QINT32": "i4",
    "QUINT8": "u1",
    "QUINT16": "u2",
    "RESOURCE": "i8",
}
CODED = (
    *("INT4", "UINT1", "INT2", "UINT2", "HIFLOAT8", "FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT8_E8M0", "FLOAT6_E3M2"),
    *("FLOAT6_E2M3", "FLOAT4_E2M1", "FLOAT4_E1M2"),
)
WITHOUT_ELEMENTS = ("UNDEFINED", "STRING", "STRING_REF", "DUAL", "VARIANT", "HIFLOAT4", "HIFLOAT4_SCALE")
_SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)


@given(dump_files())
def test_any_file_is_read_as_it_was_written(file: DumpFile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "Add.add.1.2.1700000000000000")
        write_dump_file(path, file)
        assert read_dump_file(path) == file
        assert encoded(read_dump_file(path)) == path.read_bytes()


@pytest.mark.parametrize("path", DEVICE, ids=lambda path: path.name)
def test_a_file_of_a_device_is_written_back_byte_for_byte(path: Path, tmp_path: Path) -> None:
    file = read_dump_file(path)
    write_dump_file(tmp_path / path.name, file)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / path.name).stat().st_mode & 0o777 == 0o600


@settings(max_examples=30)
@given(dump_files())
def test_a_file_of_either_variant_can_become_one_of_the_other(file: DumpFile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "Add.add.1.2.1700000000000000")
        other = DumpFile(inputs=file.inputs, outputs=file.outputs, version="2.0", op_name=file.op_name)
        write_dump_file(path, other)
        assert read_dump_file(path).tensors == file.tensors


def _values(name: str) -> st.SearchStrategy[npt.NDArray[Any]]:
    """Arrays of the values of a type, in the form that `to_host` returns."""
    if name in NUMPY or name in OTHERS:
        dtype = np.dtype(OTHERS.get(name) or {"FLOAT": "f4", "DOUBLE": "f8"}.get(name, name.lower()))
        return arrays.arrays(dtype, _SHAPES)
    if name == "BF16":
        return arrays.arrays(np.uint16, _SHAPES).map(lambda a: (a.astype(np.uint32) << np.uint32(16)).view(np.float32))
    if name == "COMPLEX32":
        return arrays.arrays(np.float16, st.tuples(st.integers(0, 5), st.just(2))).map(
            lambda a: a.astype(np.float32).reshape(-1).view(np.complex64)
        )
    values = values_of_codes(name)
    return arrays.arrays(np.uint8, _SHAPES, elements=st.integers(0, len(values) - 1)).map(lambda a: values[a])


def test_every_type_of_the_enumeration_is_tried() -> None:
    tried = {*NUMPY, *OTHERS, *CODED, *WITHOUT_ELEMENTS, "BF16", "COMPLEX32"}
    assert tried == {kind.name for kind in DATA_TYPES.values()}


@pytest.mark.parametrize("name", [*NUMPY, *OTHERS, *CODED, "BF16", "COMPLEX32"])
@settings(max_examples=30)
@given(data=st.data())
def test_elements_of_every_type_come_back(name: str, data: st.DataObject) -> None:
    array = data.draw(_values(name))
    tensor = DumpTensor.of("input", 0, array, data_type=name)
    found = tensor.to_host()
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    if array.dtype.kind == "f" and name != "HIFLOAT8":
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(array[array == 0]))


@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
@settings(max_examples=10)
@given(data=st.binary(max_size=50))
def test_bytes_without_elements_come_back(name: str, data: bytes) -> None:
    wanted = np.frombuffer(data, np.int8 if name == "UNDEFINED" else np.uint8)
    number = data_type_number(name)
    assert encode_elements(wanted, number) == data
    found = DumpTensor("input", 0, number, 2, (3, 4), HeldBytes(data)).to_host()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_order_are_written_in_c_order(order: Any) -> None:
    array = np.arange(24, dtype=">i4").reshape(2, 3, 4).copy(order=order)[:, ::-1]
    np.testing.assert_array_equal(DumpTensor.of("output", 0, array).to_host(), array)


def test_the_type_of_an_array_is_taken_where_none_is_named() -> None:
    import ml_dtypes

    for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint2"):
        array = np.array([1, 0.5, 2] if name.startswith(("b", "f")) else [1, 0, 3]).astype(getattr(ml_dtypes, name))
        tensor = DumpTensor.of("input", 0, array)
        assert tensor.dtype == name
        np.testing.assert_array_equal(tensor.to_host(), array.astype(np.float32))
    assert DumpTensor.of("input", 0, np.zeros(3, np.float64)).dtype == "float64"
    assert DumpTensor.of("input", 0, np.zeros(3, np.int8), data_type="DT_QINT8", format="NCHW").dtype == "qint8"


@pytest.mark.parametrize(
    ("array", "name", "message"),
    [
        (np.array([1.5]), "INT8", r"INT8: 1\.5 is not a value"),
        (np.array([-1], np.int8), "UINT8", "UINT8: -1 is not a value"),
        (np.array([2**63], np.uint64), "INT64", "INT64: 9223372036854775808 is not a value"),
        (np.array([-1]), "UINT64", "UINT64: -1 is not a value"),
        (np.array([300]), "UINT8", "UINT8: 300 is not a value"),
        (np.array([1e6]), "FLOAT16", "FLOAT16: 1000000.0 is not a value"),
        (np.array([np.nan]), "INT32", "INT32: nan is not a value"),
        (np.array([1 + 2j]), "FLOAT", r"FLOAT: \(1\+2j\) is not a value"),
        (np.array([1 + 2j]), "FLOAT8_E5M2", r"FLOAT8_E5M2: \(1\+2j\) is not a value"),
        (np.array([0.1], np.float32), "BF16", "not bfloat16"),
        (np.array([0.1]), "FLOAT8_E4M3FN", r"0\.1 is not a value"),
        (np.array([np.inf]), "FLOAT8_E4M3FN", "inf is not a value"),
        (np.array([0.0]), "FLOAT8_E8M0", r"0\.0 is not a value"),
        (np.array([np.nan]), "INT4", "nan is not a value"),
        (np.array([0.1]), "COMPLEX32", "is not a value"),
        (np.array([{}], dtype=object), "INT32", "holds object; numbers were expected"),
        (np.array([{}], dtype=object), "STRING", "written from bytes"),
        (np.array(["1"]), "FLOAT", "numbers were expected"),
        (np.array([1.0]), "FLOAT7", "no such element type"),
    ],
)
def test_nothing_is_rounded_when_it_is_written(array: npt.NDArray[Any], name: str, message: str) -> None:
    with pytest.raises(UndecodableTensorError, match=message):
        DumpTensor.of("input", 0, array, data_type=name)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnknownFormatError, match="NCHWX: dump files have no such format; they have NCHW"):
        DumpTensor.of("input", 0, np.zeros(3), format="NCHWX")


def test_a_small_file_has_the_bytes_of_the_specification(tmp_path: Path) -> None:
    file = DumpFile(
        inputs=(DumpTensor.of("input", 0, np.array([1, 2], np.uint8)),),
        outputs=(DumpTensor.of("output", 0, np.array([258], np.int16), format="NCHW", original_shape=(1, 1)),),
        buffers=(DumpBlob(HeldBytes(b"L1")),),
        spaces=(DumpBlob(HeldBytes(b"log"), arg_index=3),),
        op_name="a/b",
        dump_time=1,
    )
    header = (
        b"\x0a\x032.0\x10\x01"
        b"\x1a\x0f\x08\x05\x1a\x03\x0a\x01\x01\x30\x02\x3a\x04\x0a\x02\x01\x01"
        b"\x22\x0b\x08\x04\x10\x02\x1a\x03\x0a\x01\x02\x28\x02"
        b"\x2a\x02\x18\x02"
        b"\x32\x03a/b"
        b"\x42\x04\x18\x03\x20\x03"
    )
    write_dump_file(tmp_path / "x", file)
    written = (tmp_path / "x").read_bytes()
    assert written[8:-9] == header
    assert written[:8] == len(header).to_bytes(8, "little")
    assert written[-9:] == b"\x01\x02" + b"\x02\x01" + b"L1" + b"log"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    class Broken(HeldBytes):
        def read(self) -> memoryview:
            raise OSError(5, "Input/output error")

    good = DumpFile(inputs=(DumpTensor.of("input", 0, np.zeros(3)),))
    write_dump_file(tmp_path / "x", good)
    bad = DumpFile(inputs=(DumpTensor("input", 0, 1, 2, (1,), Broken(b"1234")),))
    with pytest.raises(DumpPathError, match="Input/output error"):
        write_dump_file(tmp_path / "x", bad)
    assert os.listdir(tmp_path) == ["x"]
    assert read_dump_file(tmp_path / "x") == good
    with pytest.raises(DumpPathError, match=r"gone/x: cannot be written \(No such file or directory\)"):
        write_dump_file(tmp_path / "gone" / "x", good)


def test_a_file_of_version_1_says_so(tmp_path: Path) -> None:
    file = DumpFile(inputs=(DumpTensor.of("input", 0, np.arange(3, dtype="f4")),), op_name="a/b", variant="1.0")
    write_dump_file(tmp_path / "x", file)
    read = read_dump_file(tmp_path / "x")
    assert (read.variant, read.version, read.op_name) == ("1.0", "1.0", "a/b")
    np.testing.assert_array_equal(read.inputs[0].to_host(), np.arange(3, dtype="f4"))


def test_a_file_of_version_1_has_room_for_2_gib(tmp_path: Path) -> None:
    class Large(HeldBytes):
        def __len__(self) -> int:
            return 1 << 31

    file = DumpFile(inputs=(DumpTensor("input", 0, 4, 2, (1 << 31,), Large(b"")),), variant="1.0", version="1.0")
    with pytest.raises(
        ValueError, match=r"a file of version 1\.0 holds less than 2 GiB, and these tensors have 2147483648"
    ):
        write_dump_file(tmp_path / "x", file)
    assert os.listdir(tmp_path) == []


def test_a_file_without_a_header_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no header"):
        write_dump_file(tmp_path / "x", DumpFile(version=""))
    assert os.listdir(tmp_path) == []


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"kept")
    (tmp_path / "x").symlink_to(tmp_path / "elsewhere")
    write_dump_file(tmp_path / "x", DumpFile(op_name="a"))
    assert (tmp_path / "elsewhere").read_bytes() == b"kept"
    assert not (tmp_path / "x").is_symlink()
    assert read_dump_file(tmp_path / "x").op_name == "a"
