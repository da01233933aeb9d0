"""Under capture, the program emits the same warnings, in most modes for the same lines."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import opdump
from opdump.plan import DumpPlan
from tests.torch.releases import KEEPS_PLACES_OF_WARNINGS

WAYS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "calls": lambda path: opdump.capture(DumpPlan(path=path, layout="acl", dump_level="op")),
    "failures": lambda path: opdump.capture(path=path, on_exception=True),
}


def program() -> None:
    """Warnings of PyTorch's C++ and Python code, twice from one line and from lines of several functions."""
    for _ in range(2):
        torch.std(torch.ones(1))
    torch.std(torch.ones(1))
    torch.add(torch.ones(3), 1, out=torch.empty(1))
    functional.mse_loss(torch.ones(2, 1), torch.ones(2))
    functional.grid_sample(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 2))
    network = nn.Sequential(nn.Linear(2, 2), nn.Softmax())
    network(torch.ones(1, 2)).sum().backward()
    torch.tensor(torch.ones(1))


def told(action: Any) -> list[tuple[str, str, str, int]]:
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        program()
    return [(one.category.__name__, str(one.message), os.path.basename(one.filename), one.lineno) for one in seen]


@KEEPS_PLACES_OF_WARNINGS
@pytest.mark.parametrize("action", ["always", "default"])
def test_warnings_name_the_lines_of_the_program_under_capture(action: str, tmp_path: Path) -> None:
    told(action)
    plain = told(action)
    assert sum("std" in message for _, message, *_ in plain) == (3 if action == "always" else 2)
    with opdump.capture(path=tmp_path, saved_data="full"):
        captured = told(action)
    assert captured == plain


@pytest.mark.parametrize("way", WAYS)
def test_calls_that_opdump_makes_for_the_program_give_the_same_warnings(way: str, tmp_path: Path) -> None:
    told("always")
    plain = told("always")
    with WAYS[way](tmp_path):
        captured = told("always")
    assert [each[:2] for each in captured] == [each[:2] for each in plain]
