"""Refactoring changes no file of a dump.

A change that is meant to change files rewrites the hashes: `python -m tests.golden.captures --write`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.captures import GOLDEN

ROOT = Path(__file__).resolve().parents[2]


def test_captures_write_the_same_files() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.golden.captures"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_the_hashes_are_of_files_of_every_kind() -> None:
    golden = json.loads(GOLDEN.read_text())
    suffixes = {suffix for files in golden.values() for suffix in files}
    assert len(golden) >= 60
    assert suffixes >= {".npy", ".csv", ".json", ".sqlite", ".ir", ".pb"}
