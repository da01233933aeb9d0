"""Programs that run here, and their dumps."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Literal

import pytest

import opdump


def dumped(folder: Path, name: str, program: str, saved_data: Literal["statistic", "full"] = "full") -> Path:
    """The dump of a program, which runs here as `name`.py."""
    pytest.importorskip("torch")
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(program))
    code = compile(path.read_text(), str(path), "exec")
    with opdump.capture(path=str(folder / name), saved_data=saved_data):
        exec(code, {"__name__": "__main__"})
    return folder / name
