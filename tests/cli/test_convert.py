"""`opdump convert` on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from opdump.commands import main
from tests.conversion.dump_files import TIME, dump, tensor, tree

NAME = f"Add.add.1.2.{TIME}"


def convert(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


def test_the_summary_counts_and_says_what_to_type_next(tmp_path: Path) -> None:
    dump(tmp_path / "in")
    done = convert(tmp_path / "in", "-o", tmp_path / "out")
    first, second = done.output.splitlines()
    assert first.startswith("1 file converted, 1 tensor, 152 B, ")
    assert first.endswith(f": {tmp_path}/out")
    command = second.removeprefix("next: ").replace("python", sys.executable, 1)
    shown = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert shown == "[[0. 1. 2.]\n [3. 4. 5.]]\n"
    assert done.exit_code == 0


def test_a_bad_file_is_listed_with_its_reason_and_the_exit_code_is_1(tmp_path: Path) -> None:
    dump(tmp_path / "in")
    (tmp_path / "in" / "Bad.bad.1.2.3").write_bytes(b"")
    done = convert(tmp_path / "in", "-o", tmp_path / "out")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert "1 failure" in lines[0]
    assert lines[2].split() == ["not", "converted", "reason"]
    assert lines[3].startswith(f"{tmp_path}/in/Bad.bad.1.2.3  holds 0 bytes; a dump file has a header")
    assert list(tree(tmp_path / "out")) == [f"{NAME}.output.0.npy"]


def test_json_lists_every_file_and_every_failure(tmp_path: Path) -> None:
    dump(tmp_path / "in")
    (tmp_path / "in" / "Bad.bad.1.2.3").write_bytes(b"")
    (tmp_path / "in" / "statistic.csv").write_text("")
    done = convert(tmp_path / "in", tmp_path / "none", "-o", tmp_path / "out", "--json")
    said: dict[str, Any] = json.loads(done.output)
    assert (said["converted"], said["tensors"], said["interrupted"]) == (1, 1, False)
    assert said["files"] == [
        {"path": f"{tmp_path}/in/{NAME}", "outputs": [f"{NAME}.output.0.npy"]},
        {"path": f"{tmp_path}/in/Bad.bad.1.2.3", "outputs": []},
    ]
    assert [(Path(each["path"]).name, each["error"]) for each in said["failures"]] == [
        ("none", "CorruptDumpError"),
        ("Bad.bad.1.2.3", "CorruptDumpError"),
    ]
    assert said["skipped"] == [f"{tmp_path}/in/statistic.csv"]
    assert done.exit_code == 1


def test_formats_and_shapes_make_the_names_of_msaccucmp(tmp_path: Path) -> None:
    device = tensor(np.ones((1, 1, 2, 2, 16), np.float16), format_name="NC1HWC0", original_shape=(1, 3, 2, 2))
    source = dump(tmp_path / "in", NAME, device)
    for number, options in enumerate((["--format", "nchw"], ["--format", "NHWC", "--shape", "1,2,2,5", "--to", "bin"])):
        assert convert(source, "-o", tmp_path / str(number), *options).exit_code == 0
    assert list(tree(tmp_path / "0")) == [f"{NAME}.output.0.1x3x2x2.npy"]
    assert list(tree(tmp_path / "1")) == [f"{NAME}.output.0.1_2_2_5.float16.NHWC.bin"]
    assert list(tree(tmp_path / "1").values()) == [np.ones(20, np.float16).tobytes()]


@pytest.mark.parametrize(
    "options",
    [
        ["--input", "0", "--output", "0"],
        ["--shape", "1,2"],
        ["--format", "NCHW", "--shape", "1x2"],
        ["--format", "NCHW", "--shape", "1,0"],
        ["--format", "FOO"],
        ["--to", "csv"],
        ["--jobs", "0"],
        ["--layout", "mindspore", "--to", "txt"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_with_2_and_writes_nothing(options: list[str], tmp_path: Path) -> None:
    done = convert(dump(tmp_path / "in"), "-o", tmp_path / "out", *options)
    assert (done.exit_code, (tmp_path / "out").exists()) == (2, False)


def test_one_tensor_can_be_chosen_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    source = dump(tmp_path / "in", NAME, *(tensor(np.full(2, slot, np.int8), slot=slot) for slot in range(3)))
    assert convert(source, "-o", tmp_path / "out", "--output", "1").exit_code == 0
    assert list(tree(tmp_path / "out")) == [f"{NAME}.output.1.npy"]
    done = convert(source, "-o", tmp_path / "out", "--input", "0")
    assert "has no input 0; it has 0" in done.output
    assert done.exit_code == 1


def test_a_source_without_a_dump_file_is_an_error(tmp_path: Path) -> None:
    dump(tmp_path / "in" / "inner")
    done = convert(tmp_path / "in", "-o", tmp_path / "out")
    assert "SRC contains no dump file (1 directory skipped; use --recursive)" in done.output
    assert done.exit_code == 1
    assert convert(tmp_path / "missing", "-o", tmp_path / "out").exit_code == 1


def test_names_cannot_move_the_cursor_of_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "\x1b[2J\udcff.1.2.3").write_bytes(b"")
    done = convert(tmp_path / "in", "-o", tmp_path / "out")
    assert "\x1b" not in done.output
    assert "\\x1b[2J\\xdcff.1.2.3" in done.output


def test_pt_without_torch_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = convert(dump(tmp_path / "in"), "-o", tmp_path / "out", "--to", "pt")
    assert done.exit_code == 1
    assert "pip install torch" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_pt_holds_the_element_type_of_the_device(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = np.array([[1, 2.5], [-3, 0.5]], np.float32)
    source = dump(tmp_path / "in", NAME, tensor(values, "bfloat16"), tensor(values, slot=1))
    assert convert(source, "-o", tmp_path / "out", "--to", "pt").exit_code == 0
    first, second = (torch.load(tmp_path / "out" / f"{NAME}.output.{slot}.pt", weights_only=True) for slot in (0, 1))
    assert (first.dtype, second.dtype) == (torch.bfloat16, torch.float32)
    np.testing.assert_array_equal(first.float().numpy(), values)
    np.testing.assert_array_equal(second.numpy(), values)


def test_no_framework_no_rich_and_no_numpy_is_imported_to_convert(tmp_path: Path) -> None:
    program = (
        "import sys; from opdump.commands import main\n"
        "try: main()\n"
        "finally: print([name for name in ('torch', 'rich', 'ml_dtypes', 'multiprocessing', 'numpy') if name in sys.modules])"
    )
    arguments = ["convert", str(dump(tmp_path / "in")), "-o", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_leaves_whole_files_and_ends_with_130(jobs: str, tmp_path: Path) -> None:
    block = tensor(np.zeros(1 << 14, np.float32))
    first = dump(tmp_path / "in", f"Add.add.1.2.{TIME}", block)
    for number in range(1, 20_000):
        os.link(first, tmp_path / "in" / f"Add.add.1.2.{TIME + number}")
    command = [
        sys.executable,
        "-m",
        "opdump",
        "convert",
        str(tmp_path / "in"),
        "-o",
        str(tmp_path / "out"),
        "--jobs",
        jobs,
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "out").is_dir() or len(os.listdir(tmp_path / "out")) < 10:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=900)
    assert (process.returncode, errors) == (130, "")
    said = json.loads(output)
    names = os.listdir(tmp_path / "out")
    assert {os.path.getsize(tmp_path / "out" / name) for name in names} == {(1 << 16) + 128}
    assert sorted(names) == sorted(name for file in said["files"] for name in file["outputs"])
    assert said["interrupted"] is True
