"""A traceback that the program prints is the same with and without capture."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import opdump
from opdump.errors import CaptureStateError

PROGRAM = """
import logging, sys, threading, traceback, warnings
import torch
from torch import nn

class Bad(nn.Module):
    def forward(self, x):
        traceback.print_stack(file=sys.stdout)
        return x @ torch.ones(7, 7)

net = nn.Sequential(nn.Linear(3, 3), Bad())

def run():
    net(torch.ones(2, 3))

try:
    run()
except RuntimeError as error:
    traceback.print_exc(file=sys.stdout)
    for name, line in traceback.walk_tb(error.__traceback__):
        print(name.f_code.co_name, line)

logging.basicConfig(stream=sys.stdout)
try:
    try:
        run()
    except RuntimeError as error:
        raise ValueError("another") from error
except ValueError:
    logging.exception("logged")
logging.warning("with its stack", stack_info=True)

if sys.version_info >= (3, 11):
    errors = []
    for _ in range(2):
        try:
            run()
        except RuntimeError as error:
            errors.append(error)
    traceback.print_exception(ExceptionGroup("two", errors), file=sys.stdout)

thread = threading.Thread(target=run, name="other")
thread.start()
thread.join()

class Deleted:
    def __del__(self):
        run()

Deleted()

class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("in backward")

try:
    Function.apply(torch.ones(2, requires_grad=True)).sum().backward()
except RuntimeError:
    print(traceback.format_exc())

with torch.autograd.set_detect_anomaly(True):
    x = torch.zeros(2, requires_grad=True)
    try:
        (x.sqrt() * 0).sum().backward()
    except RuntimeError:
        traceback.print_exc(file=sys.stdout)

library = torch.library.Library("opdump_traceback", "DEF")
library.define("fail(Tensor x) -> Tensor")

def fail(x):
    traceback.print_stack(file=sys.stdout)
    raise KeyError("key")

library.impl("fail", fail, "CPU")
try:
    torch.ops.opdump_traceback.fail(torch.ones(1))
except KeyError:
    traceback.print_exc(file=sys.stdout)

try:
    torch.ones(2).view(3)
except RuntimeError:
    traceback.print_exc(file=sys.stdout)

run()
"""
IN_PROGRAM = """
import sys
import torch
from torch import nn
import opdump

def run():
    nn.Sequential(nn.Linear(3, 3))(torch.ones(2, 7))

with opdump.capture(path="dump"):
    run()
"""


def _run(folder: Path, text: str, *words: str) -> tuple[str, str]:
    file = folder / "program.py"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, *words, str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith("opdump: ")]
    return done.stdout, re.sub("0x[0-9a-f]+", "0x", "\n".join(errors))


def test_what_a_program_prints_of_its_errors_and_stacks_is_the_same_under_capture(tmp_path: Path) -> None:
    plain = _run(tmp_path, PROGRAM)
    captured = _run(tmp_path, PROGRAM, "-m", "opdump", "run", "--path", "dump")
    assert captured == plain
    assert "in run" in plain[0]


def test_an_error_that_leaves_a_capture_of_the_program_names_no_file_of_opdump(tmp_path: Path) -> None:
    _, errors = _run(tmp_path, IN_PROGRAM)
    assert "in run" in errors
    assert str(Path(opdump.__file__).parent) not in errors


def test_the_module_traceback_is_the_original_one_after_a_capture(tmp_path: Path) -> None:
    before = [traceback.walk_tb, traceback.walk_stack]
    with opdump.capture(path=tmp_path):
        assert [traceback.walk_tb, traceback.walk_stack] != before
    assert [traceback.walk_tb, traceback.walk_stack] == before


def test_an_error_of_opdump_keeps_its_frames_when_the_program_prints_it(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        with pytest.raises(CaptureStateError) as caught, opdump.capture(path=tmp_path / "second"):
            pass
        text = "".join(traceback.format_exception(caught.value))
    assert str(Path(opdump.__file__).parent) in text


def test_a_stack_without_a_given_frame_begins_at_the_caller(tmp_path: Path) -> None:
    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.stack = traceback.StackSummary.extract(traceback.walk_stack(None))
            return x

    module = Looks()
    with opdump.capture(path=tmp_path):
        module(torch.ones(1))
    assert module.stack[0].name == "forward"
    assert not any(frame.filename.startswith(str(Path(opdump.__file__).parent)) for frame in module.stack)
