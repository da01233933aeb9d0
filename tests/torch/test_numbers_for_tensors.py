"""A number passed instead of a tensor is among the arguments of a record, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.adapters.torch.naming import Site, arguments_of
from opdump.adapters.torch.schemas import schema_of


def arguments(path: Path, program: Callable[[], object], **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """The arguments of each execution, by operator type."""
    with opdump.capture(path=path, **{"saved_data": "statistic", **settings}):
        program()
    found: dict[str, list[dict[str, Any]]] = {}
    for each in opdump.open(path).ops(include_skipped=True):
        found.setdefault(each.op.op_type, []).append(dict(each.op.arguments))
    return found


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_numbers_stand_under_the_name_of_the_tensor(saved_data: str, tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        x + 1
        x.mul_(0.9)
        1.5 - x
        x * True
        x * (1 + 2j)
        torch.add(x, 2, alpha=3)

    found = arguments(tmp_path, program, saved_data=saved_data)
    assert found["add"] == [{"other": 1}, {"alpha": 3, "other": 2}]
    assert found["mul_"] == [{"other": 0.9}]
    assert found["rsub"] == [{"other": 1.5, "alpha": 1}] or found["rsub"] == [{"other": 1.5}]
    assert found["mul"] == [{"other": True}, {"other": {"complex": [1.0, 2.0]}}]
    assert type(found["mul"][0]["other"]) is bool


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    found = arguments(tmp_path, lambda: torch.ones(2) * float("inf") + float("nan"))
    assert found["mul"] == [{"other": {"float": "inf"}}]
    assert found["add"] == [{"other": {"float": "nan"}}]


def test_an_exception_has_them_too(tmp_path: Path) -> None:
    def program() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(3, dtype=torch.int64).mul_(0.5)

    found = arguments(tmp_path, program, saved_data=None, on_exception=True)
    assert {"other": 0.5} in found["mul_"]


def test_a_number_that_changes_at_one_line_is_told_each_time(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        for number in (1, 2, 2, 2.0, True):
            x + number

    numbers = [each["other"] for each in arguments(tmp_path, program)["add"]]
    assert list(map(repr, numbers)) == ["1", "2", "2", "2.0", "True"]


def test_equal_arguments_share_one_mapping() -> None:
    site, schema, x = Site("add"), schema_of(torch.ops.aten.add.Tensor), torch.ones(2)
    first = arguments_of(site, schema, (x, 1), {})
    assert first == {"other": 1}
    assert arguments_of(site, schema, (x, 1), {}) is first
    assert arguments_of(site, schema, (x, 1.0), {}) is not first
    assert not arguments_of(site, schema, (x, x), {})
    assert arguments_of(site, schema, (x, 1j), {}) is arguments_of(site, schema, (x, 1j), {})


def test_numbers_in_a_list_of_tensors_keep_their_places() -> None:
    schema = schema_of(torch.ops.aten.index.Tensor)
    x = torch.ones(2)
    assert schema.numbers_among((x, [None, x.long()]), {}) == ()
    assert schema.numbers_among((x, [None, 3]), {}) == (("indices", [None, 3]),)
    assert schema.numbers_among((x, [x.long(), 3]), {}) == (("indices", [None, 3]),)
    assert schema.numbers_among((x, []), {}) == ()
    assert schema.numbers_among((x,), {"indices": [1, True]}) == (("indices", [1, True]),)
