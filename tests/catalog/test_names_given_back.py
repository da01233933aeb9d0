"""Every operator name that `opdump show` prints is accepted by `--op`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import opdump
from opdump.catalog.catalog import Catalog
from opdump.commands.show import show
from opdump.reports.shown_part import ShownPart, selected

pytestmark = pytest.mark.torch


def torch_mindspore(path: Path) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 2)
    )
    optimizer = torch.optim.Adam(model.parameters())
    mask = torch.ones(2)
    with opdump.capture(path=path, saved_data="full"):
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.ones(2, 1, 6, 6)) * mask).sum().backward()
            optimizer.step()


def torch_acl(path: Path) -> None:
    import torch

    from tests.torch.test_acl_layout import acl_plan

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    with opdump.capture(acl_plan(path, level="all")):
        model(torch.ones(1, 3)).sum().backward()


def onnx_acl(path: Path) -> None:
    import numpy as np

    from tests.acl.program import small_model

    with opdump.onnx.session(small_model(), dump_path=str(path), dump_list=[{}], dump_mode="all") as model:
        model.run(None, {value.name: np.ones((2, 3), np.float32) for value in model.inputs})


def names_in(value: Any, key: str = "") -> Iterator[str]:
    """The operator names in the output of `show --json`."""
    if isinstance(value, dict):
        for name, item in value.items() if key != "arguments" else ():
            yield from names_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from names_in(item, key)
    elif isinstance(value, str) and value and key in ("op_name", "op_type", "kernel", "forward_op", "source", "name"):
        yield value


def names_of(catalog: Catalog) -> set[str]:
    found: set[str] = set()
    for execution in catalog.executions(include_skipped=True):
        op = execution.op
        parts = op.op_name.split("/")
        found.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        found.update("/".join(parts[start:]) for start in range(len(parts)))
        found.update({op.op_type, op.kernel, op.forward_op})
        if op.op_type == "Parameter":
            found.add(f"Parameter.{op.op_name}")
        for tensor in execution.tensors:
            found.update({tensor.name, tensor.source})
    return found - {""}


@pytest.mark.parametrize("make", [torch_mindspore, torch_acl, onnx_acl])
def test_every_name_that_is_printed_is_found(make: Callable[[Path], None], tmp_path: Path) -> None:
    if make is onnx_acl:
        pytest.importorskip("onnx")
    make(tmp_path)
    catalog = opdump.open(tmp_path)
    printed = CliRunner().invoke(show, [str(tmp_path), "--json", "--limit", "0", "--skipped"])
    assert printed.exit_code == 0, printed.output
    names = names_of(catalog) | set(names_in(json.loads(printed.stdout)))
    assert len(names) > 10
    for name in sorted(names):
        assert selected(catalog, ShownPart(op=name)), name


def test_a_parameter_is_found_by_the_name_that_made_by_has(tmp_path: Path) -> None:
    torch_mindspore(tmp_path)
    shown = CliRunner().invoke(show, [str(tmp_path), "--op", "Parameter.0.weight", "--json"])
    assert shown.exit_code == 0, shown.output
    assert {each["op_name"] for each in json.loads(shown.stdout)["operators"]} == {"0.weight"}
    catalog = opdump.open(tmp_path)
    assert {tensor.op.op_name for tensor in catalog.find("Parameter.0.weight")} == {"0.weight"}
    assert catalog.op("Parameter.0.weight").op.op_name == "0.weight"


def test_a_name_that_is_not_there_is_still_an_error(tmp_path: Path) -> None:
    torch_mindspore(tmp_path)
    shown = CliRunner().invoke(show, [str(tmp_path), "--op", "Parameter.7.weight"])
    assert shown.exit_code != 0
