"""Conversion of dump files: correct elements, reported failures, and nothing else."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
import tarfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.conversion import Conversion, ConversionPlan, convert, stored_tensor
from opdump.dump_file import DATA_TYPES, DumpBlob, DumpTensor, HeldBytes
from opdump.formats import FORMATS, convert_format
from tests.conversion.dump_files import TIME, dump, overflow_file, tensor, tree

NAME = f"Add.add.1.2.{TIME}"


def converted(source: Path, out: Path, plan: ConversionPlan | None = None, **options: Any) -> Conversion:
    return convert([str(source)], out, plan or ConversionPlan(), **options)


def whole(source: Path, out: Path, plan: ConversionPlan | None = None, **options: Any) -> Conversion:
    done = converted(source, out, plan, **options)
    assert done.failures == []
    return done


def reasons(done: Conversion) -> list[tuple[str, str, str]]:
    return [(Path(each.path).name, each.tensor, each.error) for each in done.failures]


def test_every_tensor_becomes_a_npy_file_named_after_the_dump(tmp_path: Path) -> None:
    inputs = (tensor(np.arange(4, dtype=np.int64), io="input"),)
    buffers, spaces = (DumpBlob(HeldBytes(b"l1")),), (DumpBlob(HeldBytes(b"log")),)
    whole(dump(tmp_path / "in", inputs=inputs, buffers=buffers, spaces=spaces), tmp_path / "out")
    files = tree(tmp_path / "out")
    assert sorted(files) == [
        f"{NAME}.input.0.npy",
        f"{NAME}.l1buffer.0.bin",
        f"{NAME}.output.0.npy",
        f"{NAME}.space.0.bin",
    ]
    assert files[f"{NAME}.space.0.bin"] == b"log"
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / f"{NAME}.output.0.npy"), np.arange(6, dtype=np.float32).reshape(2, 3)
    )
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{NAME}.input.0.npy"), np.arange(4))


@pytest.mark.parametrize("kind", DATA_TYPES.values(), ids=lambda kind: kind.name)
def test_every_element_type_comes_out_as_the_reader_gives_it(kind: Any, tmp_path: Path) -> None:
    raw = np.random.default_rng(kind.number).integers(0, 256, 3 * 5 * 16, dtype=np.uint8)
    if kind.name == "BOOL":
        raw &= 1
    shape = (3, 40 if kind.bits == 1 else 5)
    stored = DumpTensor(
        io="output", slot=0, data_type=kind.number, format=2, shape=shape, data=HeldBytes(raw.tobytes())
    )
    source = dump(tmp_path / "in", NAME, stored)
    whole(source, tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{NAME}.output.0.npy"), stored.to_host())
    done = whole(source, tmp_path / "bin", ConversionPlan("bin"))
    used = (15 * kind.bits + 7) // 8 if kind.bits > 1 else 15 if kind.bits else len(raw)
    if kind.name == "UNDEFINED":
        used = len(raw)
    written = (tmp_path / "bin" / done.results[0].outputs[0]).read_bytes()
    # The last byte of a packed type may contain bits that belong to no element.
    assert written[: used - 1] == raw.tobytes()[: used - 1]
    assert len(written) == used


def test_pieces_of_a_large_widened_tensor_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opdump.conversion.stored_tensor.PIECE", 64)
    values = np.arange(2 * 3 * 4 * 5 * 16, dtype=np.float32).reshape(2, 3, 4, 5, 16) % 256
    source = dump(
        tmp_path / "in", NAME, tensor(values, "bfloat16", format_name="NC1HWC0", original_shape=(2, 4, 5, 41))
    )
    whole(source, tmp_path / "out", ConversionPlan(format="NHWC"))
    expected = convert_format(values, "NC1HWC0", "NHWC", shape=(2, 4, 5, 41))
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{NAME}.output.0.2x4x5x41.npy"), expected)
    whole(source, tmp_path / "txt", ConversionPlan("txt", format="NHWC"))
    text = np.loadtxt(tmp_path / "txt" / f"{NAME}.output.0.2x4x5x41.txt")
    np.testing.assert_array_equal(text.reshape(2, 4, 5, 41), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4"])
@pytest.mark.parametrize("file_type", ["npy", "bin"])
@pytest.mark.parametrize("original_shape", [(5, 41, 4, 5), ()])
def test_slabs_of_a_batch_are_the_whole(
    dtype: str, file_type: Any, original_shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (5, 3, 4, 5, 16)
    values = (np.arange(np.prod(shape)).reshape(shape) % 15 - 8).astype(np.int8 if dtype == "int4" else np.float32)
    stored = tensor(values, dtype, format_name="NC1HWC0", original_shape=original_shape)
    source = dump(tmp_path / "in", NAME, stored)
    plan = ConversionPlan(file_type, format="NCHW")
    whole(source, tmp_path / "whole", plan)
    monkeypatch.setattr("opdump.conversion.formatted._SLAB", 7000)
    monkeypatch.setattr("opdump.conversion.formatted._LARGE", 1)
    whole(source, tmp_path / "slabs", plan)
    assert tree(tmp_path / "slabs") == tree(tmp_path / "whole")
    assert len(tree(tmp_path / "whole")) == 1


def test_a_large_tensor_goes_from_file_to_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(1 << 19).astype(np.float32)
    first = tensor(np.ones(7, np.float32), io="input")
    whole(dump(tmp_path / "in", NAME, tensor(values), inputs=(first,)), tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{NAME}.output.0.npy"), values)


def test_packed_elements_go_through_a_format_and_are_packed_again(tmp_path: Path) -> None:
    values = (np.arange(1 * 2 * 2 * 2 * 16).reshape(1, 2, 2, 2, 16) % 7 - 3).astype(np.int8)
    stored = tensor(values, "int4", format_name="NC1HWC0", original_shape=(1, 20, 2, 2))
    whole(dump(tmp_path / "in", NAME, stored), tmp_path / "out", ConversionPlan("bin", format="NCHW"))
    data = (tmp_path / "out" / f"{NAME}.output.0.1_20_2_2.int4.NCHW.bin").read_bytes()
    back = replace(stored, shape=(1, 20, 2, 2), data=HeldBytes(data)).to_host()
    np.testing.assert_array_equal(back, convert_format(values, "NC1HWC0", "NCHW", shape=(1, 20, 2, 2)))


@given(st.data())
def test_text_gives_the_same_elements_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kind = np.dtype(data.draw(st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u8", "?", "c8"])))
    raw = np.frombuffer(data.draw(st.binary(min_size=kind.itemsize * 4, max_size=kind.itemsize * 4)), np.uint8)
    values = (raw & 1 if kind.kind == "b" else raw).view(kind)
    zeros = tensor(np.zeros((2, 2), kind))
    directory = tmp_path_factory.mktemp("txt")
    whole(
        dump(directory / "in", NAME, replace(zeros, data=HeldBytes(values.tobytes()))),
        directory / "out",
        ConversionPlan("txt"),
    )
    path = directory / "out" / f"{NAME}.output.0.txt"
    assert path.read_text().startswith(f"# dtype={values.dtype.name} shape=(2,2)\n")
    with np.errstate(invalid="ignore"):  # some numpy versions warn when they compare complex numbers that contain NaN
        np.testing.assert_array_equal(np.loadtxt(path, dtype=kind), values)


def test_what_the_original_loses_silently_is_a_failure_and_the_other_tensors_are_written(tmp_path: Path) -> None:
    good = tensor(np.ones(3, np.float16))
    short = replace(good, slot=1, shape=(4,))
    sliced = replace(tensor(np.ones((2, 2, 3, 4, 16), np.float16), format_name="NC1HWC0"), slot=2)
    source = dump(tmp_path / "in", NAME, good, short, replace(sliced, original_shape=(2, 99, 3, 4)))
    done = converted(source, tmp_path / "out")
    assert reasons(done) == [(NAME, "output:1", "UndecodableTensorError")]
    assert sorted(tree(tmp_path / "out")) == [f"{NAME}.output.0.npy", f"{NAME}.output.2.npy"]
    done = converted(source, tmp_path / "nchw", ConversionPlan(format="NCHW", io="output", slot=2))
    assert reasons(done) == [(NAME, "output:2", "FormatShapeError")]
    assert tree(tmp_path / "nchw") == {}


HOSTILE = {
    "empty": b"",
    "short": b"\x01" * 8,
    "header beyond the file": struct.pack("<Q", 1 << 40) + b"x" * 40,
    "header of 2^64-1": b"\xff" * 16,
    "no message": struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    "size beyond the file": struct.pack("<Q", 5) + b"\x1a\x03\x30\xff\x7f" + b"x" * 9,
    "size of 2^63": struct.pack("<Q", 13) + b"\x1a\x0b\x30" + b"\x80" * 8 + b"\x80\x01" + b"x" * 9,
    "text": b"# nothing that a device wrote\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_bad_file_is_one_named_failure_and_the_next_file_is_converted(content: bytes, tmp_path: Path) -> None:
    dump(tmp_path / "in")
    (tmp_path / "in" / "Bad.bad.1.2.3").write_bytes(content)
    done = converted(tmp_path / "in", tmp_path / "out")
    assert reasons(done) == [("Bad.bad.1.2.3", "", "CorruptDumpError")]
    assert list(tree(tmp_path / "out")) == [f"{NAME}.output.0.npy"]


@pytest.mark.parametrize("shape", [(2**63,), (0, 2**63), (2**32, 2**32), (1,) * 64 + (2,), (2**63, 2**63, 0)], ids=str)
def test_a_shape_that_no_array_has_is_a_failure_of_that_tensor(shape: tuple[int, ...], tmp_path: Path) -> None:
    bad = replace(tensor(np.ones(3, np.float32)), shape=shape, slot=1)
    done = converted(dump(tmp_path / "in", NAME, tensor(np.ones(3, np.float32)), bad), tmp_path / "out")
    assert [each.error for each in done.failures] in (["UndecodableTensorError"], ["CorruptDumpError"])


def test_links_and_special_files_in_a_directory_are_reported_and_not_opened(tmp_path: Path) -> None:
    secret = dump(tmp_path / "elsewhere", "Secret.secret.1.2.3")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "Link.link.1.2.3").symlink_to(secret)
    (tmp_path / "in" / "inner").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "in" / "Pipe.pipe.1.2.3")
    done = converted(tmp_path / "in", tmp_path / "out", recursive=True)
    assert sorted(reasons(done)) == [
        ("Link.link.1.2.3", "", "CorruptDumpError"),
        ("Pipe.pipe.1.2.3", "", "CorruptDumpError"),
        ("inner", "", "CorruptDumpError"),
    ]
    assert tree(tmp_path / "out") == {}


def test_very_deep_directories_are_not_followed_to_the_end(tmp_path: Path) -> None:
    dump(tmp_path / "in" / "/".join("d" * 64))
    bottom = dump(tmp_path / "in" / "/".join("d" * 65))
    done = converted(tmp_path / "in", tmp_path / "out", recursive=True)
    assert [each.path for each in done.failures] == [str(bottom.parent)]
    assert done.tensors == 1


def test_a_directory_of_the_output_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    dump(tmp_path / "in" / "inner")
    dump(tmp_path / "in")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "inner").symlink_to(tmp_path / "elsewhere")
    done = converted(tmp_path / "in", tmp_path / "out", recursive=True)
    assert reasons(done) == [(NAME, "output:0", "DumpPathError")]
    assert tree(tmp_path / "elsewhere") == {}
    assert f"{NAME}.output.0.npy" in tree(tmp_path / "out")


def test_a_link_in_the_place_of_an_output_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    source = dump(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    target = tmp_path / "out" / f"{NAME}.output.0.npy"
    target.symlink_to(tmp_path / "precious")
    whole(source, tmp_path / "out")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert stat.S_IMODE(target.lstat().st_mode) == 0o600
    assert not target.is_symlink()


@pytest.mark.parametrize(
    "row",
    ["123,../../escaped", "123,/etc/escaped", "123,..", "123", "\xff\xfe", "123,a\0b", "../x,Add.x.1.2.3"],
    ids=repr,
)
def test_a_mapping_that_lies_is_reported_and_the_file_keeps_its_digits(row: str, tmp_path: Path) -> None:
    dump(tmp_path / "in", "123")
    (tmp_path / "in" / "mapping.csv").write_bytes(row.encode("latin-1") + b"\n")
    done = converted(tmp_path / "in", tmp_path / "out" / "deep")
    assert reasons(done) == [("mapping.csv", "", "CorruptDumpError")]
    assert list(tree(tmp_path)) == ["in/123", "in/mapping.csv", "out/deep/123.output.0.npy"]


def test_a_mapping_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    dump(tmp_path / "in", "123")
    (tmp_path / "table").write_text("123,Add.true.1.2.3\n")
    (tmp_path / "in" / "mapping.csv").symlink_to(tmp_path / "table")
    done = converted(tmp_path / "in", tmp_path / "out")
    assert reasons(done) == [("mapping.csv", "", "CorruptDumpError")]
    assert list(tree(tmp_path / "out")) == ["123.output.0.npy"]


def test_a_file_that_would_replace_the_output_of_another_is_a_failure(tmp_path: Path) -> None:
    for name in ("1", "2", "Add.true.1.2.3"):
        dump(tmp_path / "in", name)
    (tmp_path / "in" / "mapping.csv").write_text("1,Add.true.1.2.3\n2,Add.other.1.2.3\n")
    dump(tmp_path / "more", "Add.true.1.2.3", tensor(np.zeros(1, np.int8)))
    done = convert([str(tmp_path / "in"), str(tmp_path / "more")], tmp_path / "out", ConversionPlan())
    assert [(Path(each.path).name, each.error) for each in done.failures] == [
        ("1", "CorruptDumpError"),
        ("Add.true.1.2.3", "DumpPathError"),
    ]
    assert list(tree(tmp_path / "out")) == [
        "1.output.0.npy",
        "Add.other.1.2.3.output.0.npy",
        "Add.true.1.2.3.output.0.npy",
    ]
    assert np.load(tmp_path / "out" / "Add.true.1.2.3.output.0.npy").shape == (2, 3)


def test_digits_get_their_true_name_and_long_names_a_row_of_mapping_csv(tmp_path: Path) -> None:
    long = f"Conv2D.{'n' * 250}.1.2.{TIME}"
    for directory in (tmp_path / "in", tmp_path / "in" / "inner"):
        dump(directory, "123")
        (directory / "mapping.csv").write_text(f"123,{long}\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mapping.csv").write_text("7,kept\n")
    whole(tmp_path / "in", tmp_path / "out", recursive=True)
    stored = uuid.uuid3(uuid.NAMESPACE_DNS, f"{long}.output.0.npy").hex + ".npy"
    files = tree(tmp_path / "out")
    assert sorted(files) == sorted(["inner/mapping.csv", f"inner/{stored}", "mapping.csv", stored])
    assert files["mapping.csv"].decode() == f"7,kept\n{stored},{long}.output.0.npy\n"
    assert files["inner/mapping.csv"].decode() == f"{stored},{long}.output.0.npy\n"


def test_directories_keep_their_places_and_the_output_is_no_source_of_itself(tmp_path: Path) -> None:
    dump(tmp_path / "in" / "0" / "net")
    dump(tmp_path / "in")
    for _ in range(2):
        done = whole(tmp_path / "in", tmp_path / "in" / "out", recursive=True)
        assert (done.sources, done.tensors) == (2, 2)
    assert sorted(tree(tmp_path / "in" / "out")) == [f"0/net/{NAME}.output.0.npy", f"{NAME}.output.0.npy"]
    done = whole(tmp_path / "in", tmp_path / "in")
    assert (done.tensors, len(done.subdirectories)) == (1, 2)
    done = whole(tmp_path / "in", tmp_path / "in")
    assert (done.tensors, [Path(path).name for path in done.skipped]) == (1, [f"{NAME}.output.0.npy"])


@pytest.mark.parametrize("spelling", ["Opdebug.Node_OpDebug", "OpDebug.Node_Opdebug"])
def test_overflow_files_become_json_in_either_spelling(spelling: str, tmp_path: Path) -> None:
    source = overflow_file(tmp_path / "in", f"{spelling}.59.{TIME}", task=57, stream=563, status=272)
    whole(source, tmp_path / "out", ConversionPlan("bin", format="NCHW"))
    text = (tmp_path / "out" / f"{spelling}.59.{TIME}.output.0.json").read_text()
    assert '"status": 272' in text


def test_several_processes_write_the_same_files(tmp_path: Path) -> None:
    for number in range(20):
        dump(tmp_path / "in", f"Add.add{number}.1.2.{TIME}", tensor(np.full(3, number, np.int32)))
    (tmp_path / "in" / "Bad.bad.1.2.3").write_bytes(b"")
    one = converted(tmp_path / "in", tmp_path / "one", jobs=1)
    two = converted(tmp_path / "in", tmp_path / "two", jobs=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert (one.tensors, one.bytes, reasons(one)) == (two.tensors, two.bytes, reasons(two))
    assert one.tensors == 20


def test_an_interrupt_leaves_whole_files_and_says_what_was_done(tmp_path: Path) -> None:
    for number in range(5):
        dump(tmp_path / "in", f"Add.add{number}.1.2.{TIME}")

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    done = converted(tmp_path / "in", tmp_path / "out", progress=interrupt)
    assert (done.interrupted, done.tensors, done.sources) == (True, 2, 5)
    assert len(tree(tmp_path / "out")) == 2


def test_a_failing_write_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    directory = stored_tensor  # the module; its reader is made to fail in the middle of a file
    source = dump(tmp_path / "in", NAME, tensor(np.ones(64, np.float32), "bfloat16"))
    pieces = iter(["one"])

    def failing(self: Any, piece: Any) -> Any:
        if next(pieces, None) is None:
            raise MemoryError("no room for the second piece")
        return piece.astype(np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "PIECE", 32)
        patch.setattr(directory.StoredTensor, "_widen", failing)
        done = converted(source, tmp_path / "out")
    assert reasons(done) == [(NAME, "output:0", "MemoryError")]
    assert tree(tmp_path / "out") == {}


@pytest.mark.parametrize("file_type", ["npy", "bin", "txt"])
def test_a_disk_that_takes_no_more_leaves_no_part_of_a_file(file_type: str, tmp_path: Path) -> None:
    source = dump(tmp_path / "in", NAME, tensor(np.ones(1 << 20, np.int8)), tensor(np.ones(2, np.int8), slot=1))
    program = (
        "import resource, sys; from pathlib import Path; from opdump.conversion import ConversionPlan, convert\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))\n"
        "done = convert([sys.argv[1]], Path(sys.argv[2]), ConversionPlan(sys.argv[3]))\n"
        "print([(each.tensor, each.error) for each in done.failures])"
    )
    arguments = [sys.executable, "-c", program, str(source), str(tmp_path / "out"), file_type]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout == "[('output:0', 'DumpPathError')]\n"
    (name,) = os.listdir(tmp_path / "out")
    assert name.startswith(f"{NAME}.output.1.")


def test_a_file_that_is_named_twice_is_converted_once(tmp_path: Path) -> None:
    source = dump(tmp_path / "in")
    done = convert([str(source.parent), str(source)], tmp_path / "out", ConversionPlan())
    assert (done.tensors, done.failures) == (1, [])


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="is not a writable directory") as caught:
        converted(dump(tmp_path / "in"), tmp_path / "file")
    assert type(caught.value).__name__ == "DumpPathError"


ARCHIVE = Path(__file__).parent.parent / "data" / "msaccucmp.tar.gz"

DIFFERENT = {
    "dtype_BF16_single_bin": "bin has the bytes of the device; the tool widens them and calls them bfloat16 all the same",
    "dtype_dir_bin": "the same",
    "fmt_NC1HWC0_bad_slice": "the tool leaves the tensor uncut where the original shape cannot be; that is a failure",
    "fmt_NC1HWC0_sliceflag": "a shape of fewer members than the tensor has is a failure; the tool drops the others",
    "fmt_NZ_to_ND": "the tool joins the leading axes of FRACTAL_NZ",
    "fmt_custom_script": "scripts of the user are run by the command msaccucmp alone",
    "list_comma": "a missing file is a failure",
    "mapping_dir_npy": "files are named by mapping.csv; the tool keeps the digits",
    "opdebug_new_badlen": "what the record says wrongly of itself is a failure, and the JSON is there",
    "opdebug_new_invalid0": "the same",
}


def _names() -> list[str]:
    with tarfile.open(ARCHIVE) as archive:
        cases = [name for name in archive.getnames() if name.endswith("/case.json")]
        described = [json.load(archive.extractfile(name) or pytest.fail(name)) for name in cases]
    return sorted(
        case["case"]
        for case in described
        if case["exit_code"] == 0 and case["argv"][0] == "convert" and "msnpy" not in case["argv"]
    )


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("vectors")
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(directory, filter="data")
        else:
            archive.extractall(directory)
    return directory


def _differences(case: Path, out: Path) -> list[str]:
    arguments = json.loads((case / "case.json").read_text())["argv"]
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    shape = tuple(map(int, options["-s"].split(","))) if "-s" in options else None
    plan = ConversionPlan(
        options.get("-t", "npy"),
        format=next((name for name in FORMATS if name == options.get("-f")), ""),
        shape=shape,
        io="input" if "-i" in options else "output" if "-o" in options else None,
        slot=int(options.get("-i") or options.get("-o") or 0),
    )
    sources = options["-d"].replace("{in}", str(case / "in")).split(",")
    (case / "in").mkdir(exist_ok=True)  # the archive omits empty directories
    done = convert(sources, out, plan)
    found = [f"{each.path} {each.tensor}: {each.reason}" for each in done.failures]
    expected = {path.name: path for path in (case / "out").glob("*") if path.name != "mapping.csv"}
    actual = {path.name: path for path in out.glob("*") if path.name != "mapping.csv"}
    if "dtype_UINT1" not in case.name:  # the tool writes nothing and exits with 0
        found += sorted(expected.keys() ^ actual.keys())
    for name in sorted(expected.keys() & actual.keys()):
        if name.endswith(".npy"):
            theirs, ours = np.load(expected[name]), np.load(actual[name])
            same = theirs.shape == ours.shape and theirs.tobytes() == ours.tobytes()
        else:
            same = expected[name].read_bytes() == actual[name].read_bytes()
        if not same:
            found.append(f"{name} differs")
    return found


@pytest.mark.parametrize("name", _names())
def test_names_and_elements_are_those_of_the_real_tool_or_the_difference_is_known(
    name: str, vectors: Path, tmp_path: Path
) -> None:
    differences = _differences(vectors / name, tmp_path / "out")
    assert bool(differences) == (name in DIFFERENT), differences
