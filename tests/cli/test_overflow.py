"""`opdump overflow` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from opdump.commands import main
from tests.conversion.dump_files import TIME, dump, overflow_file, tensor


def overflow(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["overflow", *map(str, arguments)])


def dumped(directory: Path) -> Path:
    dump(directory, f"Add.net_add.57.563.{TIME}", tensor(np.array([1, np.inf], np.float16)))
    overflow_file(directory, f"OpDebug.Node_Opdebug.59.5.{TIME}", task=57, stream=563, status=272)
    return directory


def test_the_table_says_operator_bits_and_values(tmp_path: Path) -> None:
    done = overflow(dumped(tmp_path / "0" / "net"))
    overflows, tensors, files = (block.splitlines() for block in done.output.strip().split("\n\n"))
    assert overflows[1].split()[3:9] == ["net/add", "Add", "AI", "Core", "57", "563"]
    assert overflows[1].endswith(
        "0x110  overflow of an integer addition, subtraction, multiplication or multiply-add; "
        "overflow of a conversion from FP32 or INT32 to FP16"
    )
    assert tensors[1].split() == ["1", "output:0", "float16", "2", "1", "inf", "0", "1"]
    assert [Path(line.split()[1]).name for line in files[1:]] == [
        f"OpDebug.Node_Opdebug.59.5.{TIME}",
        f"Add.net_add.57.563.{TIME}",
    ]
    assert done.exit_code == 0


def test_json_has_every_field_and_spells_infinity_as_text(tmp_path: Path) -> None:
    done = overflow(dumped(tmp_path), "--json")
    (said,) = json.loads(done.output)["overflows"]
    assert (said["operator"], said["task_id"], said["stream_id"], said["status"]) == ("net/add", 57, 563, [272])
    assert said["tensors"] == [
        {
            "name": "output:0",
            "dtype": "float16",
            "shape": [2],
            "min": 1.0,
            "max": "inf",
            "nan": 0,
            "inf": 1,
            "problem": "",
        }
    ]


def test_nothing_overflowed_is_no_error(tmp_path: Path) -> None:
    dump(tmp_path)
    done = overflow(tmp_path)
    assert (done.output, done.exit_code) == ("nothing overflowed (0 overflow files found)\n", 0)


def test_a_damaged_file_is_reported_and_ends_with_1(tmp_path: Path) -> None:
    bad = dumped(tmp_path) / f"Opdebug.Node_OpDebug.60.{TIME}"
    bad.write_bytes(b"\0" * 8)
    done = overflow(tmp_path)
    assert "net/add" in done.output
    assert f"opdump: problem: {bad}: holds 8 bytes" in done.output
    assert done.exit_code == 1
    assert overflow(tmp_path / "missing").exit_code == 1
    assert overflow().exit_code == 2
