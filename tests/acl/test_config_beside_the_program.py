"""A relative path of an acl.json is resolved against the program's directory first, then against the current one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from opdump import acl
print(acl.init("acl.json"))
print(acl.mdl.init_dump(), acl.mdl.set_dump("later/acl.json"))
"""
CONFIG = '{"dump": {"dump_path": "%s", "dump_list": [{}]}}'


def _printed(program: Path, current: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(program)], cwd=current, capture_output=True, text=True, check=False, env=os.environ
    )
    return done.stdout.split()


@pytest.mark.parametrize("place", ["program", "current"])
def test_the_file_is_found_beside_the_program_and_in_the_current_directory(place: str, tmp_path: Path) -> None:
    for name in ("program/later", "current/later", "dump"):
        (tmp_path / name).mkdir(parents=True)
    program = tmp_path / "program" / "infer.py"
    program.write_text(PROGRAM, encoding="utf-8")
    assert _printed(program, tmp_path / "current") == ["100003", "100001", "100001"]
    for name in ("acl.json", "later/acl.json"):
        (tmp_path / place / name).write_text(CONFIG % (tmp_path / "dump"), encoding="utf-8")
    assert _printed(program, tmp_path / "current") == ["0", "0", "0"]


def test_the_file_beside_the_program_is_preferred_to_the_one_in_the_current_directory(tmp_path: Path) -> None:
    for name in ("program/later", "current/later", "dump"):
        (tmp_path / name).mkdir(parents=True)
    program = tmp_path / "program" / "infer.py"
    program.write_text(PROGRAM, encoding="utf-8")
    for name in ("acl.json", "later/acl.json"):
        (tmp_path / "program" / name).write_text(CONFIG % (tmp_path / "dump"), encoding="utf-8")
        (tmp_path / "current" / name).write_text("{", encoding="utf-8")
    assert _printed(program, tmp_path / "current") == ["0", "0", "0"]
