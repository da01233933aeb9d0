"""The real msaccucmp of mindstudio-probe beside opdump's, where it needs no library of CANN: the command line and bad input.

What it makes of dump files is held in tests/msaccucmp, by files that it wrote.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from opdump.dump_file import DumpFile, DumpTensor, write_dump_file
from tests.parity import peers

NAME = "Add.net_add.1.2.1700000000000000"
COMMANDS = {
    "no command": [],
    "no dump": ["convert"],
    "an unknown command": ["transform"],
    "an unknown option": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-x"],
    "an unknown type": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-t", "csv"],
    "an unknown version": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-v", "3"],
    "an unknown format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "FOO"],
    "a shape that is none": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-s", "3x4"],
    "a shape with a zero": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-s", "0,4"],
    "a shape without a format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-s", "3,4"],
    "scripts without a format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-c", "{in}/good"],
    "an input without a format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-i", "0"],
    "input and output": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-i", "0", "-o", "0"],
    "an input that is no number": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-i", "x"],
    "a path with a star": ["convert", "-d", "{in}/good/*", "-out", "{out}"],
    "nothing there": ["convert", "-d", "{in}/nothing", "-out", "{out}"],
    "a list of nothing": ["convert", "-d", "{in}/nothing,{in}/neither", "-out", "{out}"],
    "an empty directory": ["convert", "-d", "{in}/empty", "-out", "{out}"],
    "a directory with mapping.csv alone": ["convert", "-d", "{in}/mapped", "-out", "{out}"],
    "an empty file": ["convert", "-d", f"{{in}}/zero/{NAME}", "-out", "{out}"],
    "a directory of an empty file": ["convert", "-d", "{in}/zero", "-out", "{out}"],
    "a header beyond the file": ["convert", "-d", f"{{in}}/long/{NAME}", "-out", "{out}"],
    "overflow without a directory": ["overflow"],
    "overflow of nothing": ["overflow", "-d", "{in}/nothing", "-out", "{out}"],
    "overflow with nothing found": ["overflow", "-d", "{in}/good", "-out", "{out}"],
    "overflow of too many": ["overflow", "-d", "{in}/good", "-out", "{out}", "-n", "6"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("in")
    for name in ("good", "empty", "mapped", "zero", "long"):
        (root / name).mkdir()
    tensor = DumpTensor.of("output", 0, np.arange(12, dtype=np.float32).reshape(3, 4))
    write_dump_file(root / "good" / NAME, DumpFile(outputs=(tensor,), op_name="net/add"))
    (root / "mapped" / "mapping.csv").write_text("123,Add.net_add.1.2.3\n")
    (root / "zero" / NAME).touch()
    (root / "long" / NAME).write_bytes(struct.pack("<Q", 1000) + bytes(40))
    return root


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_as_the_original_ends(name: str, folder: Path, tmp_path: Path) -> None:
    original = _run([str(peers.MSPROBE), str(peers.msaccucmp())], COMMANDS[name], folder, tmp_path / "original")
    own = _run([sys.executable, "-m", "opdump.msaccucmp"], COMMANDS[name], folder, tmp_path / "own")
    assert own == original


def _run(program: Sequence[str], arguments: Sequence[str], folder: Path, output: Path) -> tuple[int, list[str]]:
    output.mkdir()
    filled = [argument.replace("{in}", str(folder)).replace("{out}", str(output)) for argument in arguments]
    environment = {**os.environ, "PYTHONPATH": str(peers.ROOT / "src") if "opdump.msaccucmp" in program else ""}
    result = subprocess.run(
        [*program, *filled], cwd=output, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    return result.returncode, sorted(path.name for path in output.iterdir())
