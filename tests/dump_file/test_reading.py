"""Every variant of dump file is read as specified, and a defect of one tensor costs only that tensor."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from opdump.dump_file import (
    DumpBlob,
    DumpFile,
    DumpTensor,
    HeldBytes,
    OriginalOp,
    UnreadableBytes,
    read_dump_file,
    write_dump_file,
)
from opdump.dump_file.dump_file import dump_data
from opdump.errors import CorruptDumpError, UndecodableTensorError
from tests.dump_file.samples import DATA, NanoTensor, encoded, nano_file, read_bytes

DEVICE = DATA / "device"


def _with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def test_a_file_of_a_device_says_everything() -> None:
    file = read_dump_file(DEVICE / "Conv2D.two_inputs_two_outputs_buffer_space.1.2.1700000000000000")
    assert [tensor.name for tensor in file.tensors] == ["input:0", "input:1", "output:0", "output:1"]
    assert [tensor.dtype for tensor in file.tensors] == ["float32", "int32", "float16", "bool"]
    assert file.inputs[0].address == 4096
    assert [len(blob.data) for blob in (*file.buffers, *file.spaces)] == [15, 20]
    assert (file.variant, file.version) == ("2.0", "2.0")
    groups = read_dump_file(DEVICE / "X.groups.1.2.1700000000000000")
    assert groups.outputs[0].sub_format == 4
    ffts = read_dump_file(DEVICE / "Relu.ffts_op.9.3.1700000000000000.4.1.0.0")
    assert '"threadMode": 1' in dict(ffts.attributes)["ffts_str"]
    assert read_dump_file(DEVICE / "Add.boolean.11.0.1700000000000061").outputs[0].to_host().shape == (4, 8)


def test_more_bytes_than_announced_are_tolerated(tmp_path: Path) -> None:
    file = DumpFile(outputs=(DumpTensor.of("output", 0, np.arange(3.0)),))
    assert read_bytes(encoded(file) + b"more", tmp_path) == file


def test_unpacked_dimensions_are_read(tmp_path: Path) -> None:
    entry = b"\x08\x04\x10\x02\x1a\x04\x08\x02\x08\x03\x28\x06"
    file = read_bytes(_with_header(b"\x0a\x032.0\x22" + bytes([len(entry)]) + entry, b"abcdef"), tmp_path)
    assert file.inputs[0].to_host().tolist() == [[97, 98, 99], [100, 101, 102]]


def test_unknown_numbers_and_fields_are_kept(tmp_path: Path) -> None:
    message = dump_data()(version=b"2.0")
    message.output.add(data_type=12345, format=-7, size=2)
    entry = message.output[0].SerializeToString() + b"\xa2\x06\x03new"
    header = b"\x0a\x032.0\x1a" + bytes([len(entry)]) + entry + b"\xa0\x06\x05"
    data = _with_header(header, b"ab")
    file = read_bytes(data, tmp_path)
    assert (file.outputs[0].data_type, file.outputs[0].format) == (12345, -7)
    assert (file.outputs[0].unknown, file.unknown) == (b"\xa2\x06\x03new", b"\xa0\x06\x05")
    assert file.outputs[0].to_host().tolist() == [97, 98]
    assert encoded(file) == data


def test_names_that_are_no_utf_8_are_kept(tmp_path: Path) -> None:
    data = _with_header(b"\x0a\x032.0\x32\x04a\xff/b")
    file = read_bytes(data, tmp_path)
    assert file.op_name == "a\udcff/b"
    assert encoded(file) == data


def test_a_file_of_version_1_holds_its_bytes_inside(tmp_path: Path) -> None:
    message = dump_data()(version=b"1.0", dump_time=7, op_name=b"conv1")
    message.output.add(data_type=4, format=2, data=b"out", shape={"dim": [3]}, original_op={"name": b"x"})
    message.input.add(data_type=6, format=2, data=b"\x01\x00\x02\x00", shape={"dim": [2]})
    message.buffer.add(data=b"L1")
    message.space.add(data=b"log", arg_index=4)
    file = read_bytes(message.SerializeToString(), tmp_path)
    assert (file.variant, file.op_name, file.dump_time) == ("1.0", "conv1", 7)
    assert file.inputs[0].to_host().tolist() == [1, 2]
    assert bytes(file.outputs[0].data.read()) == b"out"
    assert file.outputs[0].original_op == OriginalOp("x")
    assert file.buffers == (DumpBlob(HeldBytes(b"L1")),)
    assert file.spaces == (DumpBlob(HeldBytes(b"log"), arg_index=4),)


def test_the_bytes_of_a_large_file_of_version_1_stay_in_the_file(tmp_path: Path) -> None:
    import tracemalloc

    array = np.arange(1 << 20, dtype=np.int32)
    path = tmp_path / "Add.add.1.2"
    write_dump_file(path, DumpFile(inputs=(DumpTensor.of("input", 0, array),), version="1.0", variant="1.0"))
    tracemalloc.start()
    try:
        file = read_dump_file(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(file.inputs[0].to_host(), array)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_large_files_are_not_kept_open(tmp_path: Path) -> None:
    path = tmp_path / "Add.add.1.2.3"
    array = np.arange(1 << 18, dtype=np.float32)
    write_dump_file(path, DumpFile(inputs=(DumpTensor.of("input", 0, array),), op_name="a"))
    before = _open_files()
    files = [read_dump_file(path) for _ in range(50)]
    assert _open_files() == before
    held = files[0].inputs[0].to_host()
    np.testing.assert_array_equal(held, array)
    del held
    assert _open_files() == before
    assert files[1] == files[2]


def test_a_large_file_that_was_replaced_is_not_taken_for_the_other(tmp_path: Path) -> None:
    path = tmp_path / "Add.add.1.2.3"
    file = DumpFile(inputs=(DumpTensor.of("input", 0, np.arange(1 << 18, dtype=np.float32)),))
    write_dump_file(path, file)
    header = read_dump_file(path)
    held = read_dump_file(path).inputs[0].to_host()
    write_dump_file(path, file)
    with pytest.raises(CorruptDumpError, match=r"Add\.add\.1\.2\.3: was changed after its header was read"):
        header.inputs[0].to_host()
    assert held[-1] == (1 << 18) - 1
    path.unlink()
    with pytest.raises(CorruptDumpError, match="cannot be opened"):
        header.inputs[0].to_host()


def test_a_large_file_can_be_written_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "Add.add.1.2.3"
    write_dump_file(path, DumpFile(inputs=(DumpTensor.of("input", 0, np.ones(1 << 18)),)))
    data = path.read_bytes()
    write_dump_file(path, read_dump_file(path))
    assert path.read_bytes() == data


def test_a_tensor_without_an_address_loses_only_itself(tmp_path: Path) -> None:
    message = dump_data()(version=b"2.0")
    message.input.add(data_type=4, size=3, shape={"dim": [3]}, address=64)
    message.input.add(data_type=4, size=1 << 40, shape={"dim": [1 << 40]})
    message.output.add(data_type=4, size=2, shape={"dim": [2]}, address=128)
    message.space.add(size=1)
    file = read_bytes(_with_header(message.SerializeToString(), b"abcdeL"), tmp_path)
    assert [tensor.is_readable for tensor in file.tensors] == [True, False, True]
    assert [bytes(tensor.data.read()) for tensor in file.tensors if tensor.is_readable] == [b"abc", b"de"]
    assert bytes(file.spaces[0].data.read()) == b"L"
    for read in (file.inputs[1].to_host, file.inputs[1].data.read):
        with pytest.raises(UndecodableTensorError, match=r"Add\.add.*: input:1: its 1099511627776 bytes are not in"):
            read()
    write_dump_file(tmp_path / "again", file)
    assert (tmp_path / "again").read_bytes().endswith(b"abcdeL")
    assert read_dump_file(tmp_path / "again") == file


def test_sizes_beyond_the_file_are_an_error_where_addresses_explain_nothing(tmp_path: Path) -> None:
    for addresses in ((0, 0), (1, 1), (1, 0)):
        message = dump_data()(version=b"2.0")
        for address in addresses:
            message.input.add(data_type=4, size=3, shape={"dim": [3]}, address=address)
        with pytest.raises(CorruptDumpError, match="announces tensors up to byte"):
            read_bytes(_with_header(message.SerializeToString(), b"abcde"), tmp_path)


@pytest.mark.parametrize("field", ["shape", "original_shape"])
def test_a_shape_without_sense_loses_only_its_tensor(field: str, tmp_path: Path) -> None:
    message = dump_data()(version=b"2.0")
    message.input.add(data_type=4, size=3, **{field: {"dim": [1] * 65}})
    message.output.add(data_type=4, size=2, shape={"dim": [2]})
    file = read_bytes(_with_header(message.SerializeToString(), b"abcde"), tmp_path)
    assert isinstance(file.inputs[0].data, UnreadableBytes)
    with pytest.raises(UndecodableTensorError, match="input:0: its shape has 65 dimensions"):
        file.inputs[0].to_host()
    assert file.outputs[0].to_host().tolist() == [100, 101]


def test_a_tensor_that_cannot_be_decoded_names_its_file_and_leaves_the_others() -> None:
    file = read_dump_file(DEVICE / "X.odd_payload.1.2.1700000000000000")
    with pytest.raises(UndecodableTensorError, match=r"X\.odd_payload.*: output:0: 6 bytes of FLOAT hold 1"):
        file.outputs[0].to_host()
    assert len(file.outputs[0].data) == 6


def test_an_exception_file_is_bytes_and_words(tmp_path: Path) -> None:
    file = DumpFile(
        inputs=(DumpTensor("input", 0, 0, 0, (), HeldBytes(b"\xff\x01\x02"), arg_index=5, input_type=3),),
        dump_time=1700000000000000,
        dfx_message="[AIC_INFO] args before\nargs after",
    )
    write_dump_file(tmp_path / "exception_info.1.2.20240101120000000", file)
    found = read_dump_file(tmp_path / "exception_info.1.2.20240101120000000")
    assert found == file
    assert (found.inputs[0].dtype, found.inputs[0].to_host().tolist()) == ("undefined", [-1, 1, 2])
    assert found.dfx_message.startswith("[AIC_INFO]")


GE = {0: "FLOAT", 1: "FLOAT16", 2: "INT8", 3: "INT32", 4: "UINT8", 6: "INT16", 7: "UINT16", 8: "UINT32", 9: "INT64"} | {
    10: "UINT64",
    11: "DOUBLE",
    12: "BOOL",
    16: "COMPLEX64",
    17: "COMPLEX128",
    23: "RESOURCE",
    27: "BF16",
    28: "UNDEFINED",
    29: "INT4",
    30: "UINT1",
}


def test_a_nano_file_is_read_in_the_numbers_of_dump_files(tmp_path: Path) -> None:
    from opdump.dump_file import data_type

    values = np.arange(6, dtype=np.float32)
    data = nano_file(
        [NanoTensor(0, (2, 3), values.tobytes(), original_shape=(6,)), NanoTensor(27, (), b"\x80\x3f")],
        [NanoTensor(3, (1,), b"\x07\0\0\0", format=3, name="conv", original=(2, 1, 0), address=99, offset=5)],
    )
    file = read_bytes(data, tmp_path)
    assert (file.variant, file.version) == ("nano", "1")
    np.testing.assert_array_equal(file.inputs[0].to_host(), values.reshape(2, 3))
    assert file.inputs[0].original_shape == (6,)
    assert float(file.inputs[1].to_host()) == 1.0
    output = file.outputs[0]
    assert output.to_host().tolist() == [7]
    assert (output.format_name, output.address, output.offset) == ("NC1HWC0", 99, 5)
    assert output.original_op == OriginalOp("conv", 2, 2, 0)
    for number, name in GE.items():
        found = read_bytes(nano_file([NanoTensor(number, (), bytes(16))]), tmp_path).inputs[0].data_type
        assert data_type(found).name == name


@pytest.mark.parametrize("number", [5, 43, 1000, -3])
def test_a_number_that_ge_does_not_have_is_an_unknown_type(number: int, tmp_path: Path) -> None:
    tensor = read_bytes(nano_file([NanoTensor(number, (2,), b"ab")]), tmp_path).inputs[0]
    assert tensor.dtype == f"type_{-abs(number)}"
    assert tensor.to_host().tolist() == [97, 98]


def test_unknown_tags_of_a_nano_file_are_ignored(tmp_path: Path) -> None:
    data = nano_file([NanoTensor(4, (2,), b"ab")], more=struct.pack("<II", 9, 3) + b"xyz")
    assert read_bytes(data, tmp_path).inputs[0].to_host().tolist() == [97, 98]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (nano_file([NanoTensor(4, (2,), b"ab")]) + b"c", "but its nano header announces"),
        (nano_file([NanoTensor(4, (2,), b"ab")])[:-1], "but its nano header announces"),
        (nano_file([NanoTensor(4, (2,), b"ab")], count=2), "its nano header ends at byte"),
        (nano_file([NanoTensor(4, (2,), b"ab")], count=2**32 - 1), "its nano header ends at byte"),
        (nano_file([], length=2**64 - 1), "announces a nano header of 18446744073709551615 bytes"),
        (nano_file([], length=4), "announces a nano header of 4 bytes"),
        (nano_file([], more=b"\x04"), "its nano header ends at byte"),
        (nano_file([], more=struct.pack("<II", 4, 2**32 - 1)), "its nano header ends at byte"),
    ],
    ids=range(8),
)
def test_a_nano_file_that_contradicts_itself_is_corrupt(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptDumpError, match=message):
        read_bytes(data, tmp_path)


def test_nano_files_are_written_by_devices_alone(tmp_path: Path) -> None:
    file = read_bytes(nano_file([NanoTensor(4, (2,), b"ab")]), tmp_path)
    with pytest.raises(ValueError, match="nano files are only written by devices"):
        write_dump_file(tmp_path / "x", file)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_what_is_no_regular_file_is_refused_without_waiting(make: object, tmp_path: Path) -> None:
    path = tmp_path / "Add.add.1.2.3"
    os.mkfifo(path) if make is os.mkfifo else os.mkdir(path)
    with pytest.raises(CorruptDumpError, match=r"Add\.add\.1\.2\.3: is not a regular file"):
        read_dump_file(path)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("gone")
    for name in ("gone", "loop", "dangling", "n" * 300, "a/b"):
        with pytest.raises(CorruptDumpError, match="cannot be opened"):
            read_dump_file(tmp_path / name)
    with pytest.raises(CorruptDumpError, match="is not a path"):
        read_dump_file(str(tmp_path / "a\0b"))


def test_a_link_to_a_dump_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to((DEVICE / "Add.scalar.10.0.1700000000000060").resolve())
    assert read_dump_file(tmp_path / "link").outputs[0].to_host().size == 1
