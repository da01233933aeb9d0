"""Programs that run here, and their dumps."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import opdump
from opdump.comparison.memory import read_step
from opdump.comparison.trace import Trace

Program = Callable[[Any], Any]
"""Computes something from the product of data and a weight."""


def dumped(
    folder: Path, name: str, program: str, saved_data: Literal["statistic", "full"] = "full", **settings: Any
) -> Path:
    """The dump of a program, which runs here as `name`.py; `settings` are further keywords of `opdump.capture`."""
    pytest.importorskip("torch")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(program))
    code = compile(path.read_text(), str(path), "exec")
    with opdump.capture(path=str(folder / name), saved_data=saved_data, **settings):
        exec(code, {"__name__": "__main__"})
    return folder / name


def traced(path: Path, program: Program) -> Trace:
    """The step of a program, which always starts from the same product."""
    import torch

    torch.manual_seed(0)
    data, weight = torch.randn(5, 4), torch.randn(4, 3)
    with opdump.capture(path=str(path), saved_data="full"):
        program(data @ weight)
    return read_step(opdump.open(path), 0)
