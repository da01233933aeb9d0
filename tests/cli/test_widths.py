"""Tables on a terminal of 80 and 200 columns, and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.programs import opdump

pytestmark = pytest.mark.torch

TRAIN = """
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_projection = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.log(self.attention_projection(x) - 1e3).exp() * 2


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


net = Decoder()
for _ in range(2):
    torch.nn.functional.scaled_dot_product_attention(*[torch.rand(1, 2, 4, 8)] * 3)
    net(torch.ones(2, 4)).sum().backward()
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("widths")
    (folder / "train.py").write_text(TRAIN)
    done = opdump("run", "--path", "dump", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "dump"


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "dumb"}
    with subprocess.Popen([sys.executable, "-m", "opdump", *arguments], stdout=theirs, env=environ) as process:
        os.close(theirs)
        read = b""
        try:
            while piece := os.read(ours, 65536):
                read += piece
        except OSError:  # how a terminal signals its end
            pass
        finally:
            os.close(ours)
        process.wait()
    return read.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", ["show", "show --step 0", "check", "show --op log --step 0"])
def test_no_line_of_a_table_is_wider_than_the_terminal(command: str, columns: int, dump: Path) -> None:
    verb, *rest = command.split()
    lines = on_a_terminal(columns, verb, str(dump), *rest)
    tables = [line for line in lines if not line.startswith(("  /", "opdump: "))]
    assert len(tables) > 5
    assert max(map(len, tables)) <= columns, lines


def test_operators_keep_their_end_and_their_module(dump: Path) -> None:
    lines = on_a_terminal(80, "show", str(dump), "--step", "0")
    (row,) = [line for line in lines if line.startswith("log-op")][:1]
    assert "/layers-ModuleList/0-Block " in row or "/0-Block " in row
    assert "train.py:11" in row
    assert any(re.match(r"\S+_for_cpu-op\d+ ", line) for line in lines), lines
    assert any(line.endswith(" hidden; use --wide") for line in lines)


@pytest.mark.parametrize("verb", ["show", "check"])
def test_a_pipe_and_wide_get_all_of_it(verb: str, dump: Path) -> None:
    piped = opdump(verb, str(dump), cwd=dump).stdout.splitlines()
    wide = on_a_terminal(80, verb, str(dump), "--wide")
    assert wide == piped
    assert not any("--wide" in line for line in piped)


def test_what_was_inherited_is_a_count_on_a_terminal(dump: Path) -> None:
    piped = opdump("check", str(dump), cwd=dump).stdout.splitlines()
    inherited = [line for line in piped if line.endswith("  inherited")]
    assert len(inherited) > 5
    lines = on_a_terminal(120, "check", str(dump))
    assert not any(line.endswith("  inherited") for line in lines)
    counted = [line for line in lines if line.endswith("inherited findings not shown (--wide shows all)")]
    assert len(counted) == 1
