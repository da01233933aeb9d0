"""Programs with deep calls: near the recursion limit, and with the error at the limit, they behave as without a capture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.plan import DumpPlan

LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
    "acl calls": {"layout": "acl", "file_format": "bin", "dialect": "acl", "dump_level": "all"},
    "acl overflow": {"layout": "acl", "file_format": "bin", "dialect": "acl", "captures": "overflow"},
    "acl exception": {"layout": "acl", "file_format": "bin", "dialect": "acl", "captures": "exception"},
}
PYTORCHS_OWN = 12
"""Calls that PyTorch needs to pass an operator to a mode written in Python, and that a capture needs to begin."""


@pytest.fixture(autouse=True)
def a_low_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    yield
    sys.setrecursionlimit(before)


def _room(calls: int = 0) -> int:
    try:
        return _room(calls + 1)
    except RecursionError:
        return calls


def _down(calls: int, function: Callable[[], Any]) -> Any:
    return _down(calls - 1, function) if calls else function()


def _values(write: torch.Tensor, room: int) -> list[object]:
    return [_value(room - left, write) for left in range(0, 60, 4)]


def _value(calls: int, write: torch.Tensor) -> object:
    try:
        return _down(calls, lambda: torch.add(write, 1).relu_().mul_(2).add_(write)).sum().item()
    except RecursionError:
        return "too deep"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operators_run_as_deep_as_without_a_capture(layout: str, tmp_path: Path) -> None:
    data = torch.ones(3, 3)
    room = _room()
    expected = _values(data, room)
    limit = sys.getrecursionlimit()
    with opdump.capture(DumpPlan(path=tmp_path, **LAYOUTS[layout]), strict=True) as dump:
        _value(0, data)  # lookups that PyTorch and opdump do only once
        dump.step()
        found = _values(data, room)
        dump.step()
        data.exp()
        dump.step()
    assert found[PYTORCHS_OWN // 4 :] == expected[PYTORCHS_OWN // 4 :]
    assert sys.getrecursionlimit() == limit
    report = dump.report
    assert report is not None
    assert report.failure == ""
    if "captures" in LAYOUTS[layout]:
        return
    catalog = opdump.open(tmp_path)
    whole = sum(value != "too deep" for value in found)
    assert whole >= 12
    kernels = [op.op_type for op in catalog.ops(step=1) if op.op_type in ("add", "relu_", "mul_", "add_")]
    assert kernels.count("add_") == whole
    assert {"exp"} <= {op.op_type for op in catalog.ops(step=2)}
    for step in (1, 2):
        sides: dict[tuple[str, int], set[str]] = {}
        for record in catalog.tensors(step=step):
            sides.setdefault((record.op.op_name, record.op.occurrence), set()).add(record.io)
        assert not {
            name for name, found in sides.items() if "_local_scalar" not in name[0] and found != {"input", "output"}
        }


class _Deep(torch.nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, data: torch.Tensor, levels: int) -> torch.Tensor:
        data = self.layer(data)
        return data if levels == 0 else self(data, levels - 1)


def _deepest(model: _Deep, data: torch.Tensor) -> int:
    """The largest number of levels that does not exceed the limit."""
    levels, too_many = 0, 400
    while too_many - levels > 1:
        middle = (levels + too_many) // 2
        try:
            model(data, middle)
        except RecursionError:
            too_many = middle
        else:
            levels = middle
    return levels


@pytest.mark.parametrize("layout", ["sync", "acl", "acl exception"])
def test_a_model_that_calls_itself_goes_as_deep_as_without_a_capture(layout: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = _Deep(), torch.ones(1, 2)
    most = _deepest(model, data)
    assert most > 40
    # A capture adds some calls around the network and around an operator, as many as a few levels.
    levels = most - 6
    expected = model(data, levels)
    with opdump.capture(DumpPlan(path=tmp_path, **LAYOUTS[layout]), strict=True) as dump:
        assert torch.equal(model(data, levels), expected)
        with pytest.raises(RecursionError):
            model(data, 400)
        dump.step()
        assert torch.equal(model(data, 3), model(data, 3))
    assert dump.report is not None
    assert dump.report.failure == ""
    if layout == "sync":
        assert sum(op.op_type == "addmm" for op in opdump.open(tmp_path).ops(step=1)) == 8


def test_the_limit_that_the_program_sets_stays_its_own(tmp_path: Path) -> None:
    with opdump.capture(DumpPlan(path=tmp_path, layout="mindspore-2.3")):
        torch.ones(2).exp()
        sys.setrecursionlimit(1234)
        torch.ones(2).exp()
        assert sys.getrecursionlimit() == 1234
    assert sys.getrecursionlimit() == 1234
