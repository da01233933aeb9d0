"""A script that is run through a symbolic link dumps into the same place with every adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys
from opdump.configs.shared.directories import program_directory
from opdump.onnx.recording import plan_of
from opdump.configs.dialects import resolve_plan

config = sys.argv[1]
print(program_directory())
print(resolve_plan(config).path)
print(plan_of(config).path)
"""


def test_the_directory_of_a_script_is_that_of_its_file_and_not_of_a_link(tmp_path: Path) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    (real / "out").mkdir(parents=True)
    (linked / "out").mkdir(parents=True)
    config = tmp_path / "acl.json"
    config.write_text('{"dump": {"dump_path": "out", "dump_list": [], "dump_op_switch": "on"}}')
    program = real / "program.py"
    program.write_text(_PROGRAM)
    (linked / "program.py").symlink_to(program)
    (tmp_path / "also").symlink_to(real)
    for started in (program, linked / "program.py", tmp_path / "also/program.py"):
        done = subprocess.run([sys.executable, started, config], check=True, stdout=subprocess.PIPE, text=True)
        assert done.stdout.split() == [str(real), str(real / "out"), str(real / "out")], started
