"""Each keyword of `opdump.capture` that is a field of `DumpPlan`, tested by its effect on a dump."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opdump
from opdump.errors import DumpPathError
from opdump.plan import DumpPlan
from tests.config.test_plan_fields import ONLY_IN_A_PLAN


def _program(dump: Any) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU())
    opdump.set_dump(net[1])
    try:
        for _ in range(2):
            net(torch.ones(1, 1, 5, 5)).sum().backward()
            large = torch.full((2,), 300.0).half()
            large * large
            dump.step()
    finally:
        opdump.set_dump(net[1], enabled=False)


class Dumped:
    """The files of a dump."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}

    def named(self, part: str) -> list[str]:
        return sorted(file for file in self.files if part in file)

    def types(self) -> set[str]:
        return {execution.op.op_type for execution in opdump.open(self.path).executions()}

    def table(self) -> list[str]:
        return (self.path / self.named("/statistic.csv")[0]).read_text().splitlines()

    def steps(self) -> set[str]:
        return {str(step) for step in opdump.open(self.path).steps}


def _header(dumped: Dumped) -> list[str]:
    return dumped.table()[0].partition("Shape,")[2].split(",")


def _convolution(dumped: Dumped) -> Any:
    (file, *_) = dumped.named("0/convolution.convolution-op")
    return np.load(dumped.path / file)


# Keyword -> settings of both dumps, the tested settings, a function of a dump, and its results without and with the tested settings.
Effect = tuple[dict[str, Any], dict[str, Any], Callable[[Dumped], object], object, object]
EFFECTS: dict[str, Effect] = {
    "net_name": ({}, {"net_name": "X"}, lambda found: bool(found.named("rank_0/X/")), False, True),
    "steps": ({}, {"iteration": "1"}, Dumped.steps, {"0", "1"}, {"1"}),
    "saved_data": ({}, {"saved_data": "full"}, lambda found: bool(found.named("statistic.csv")), False, True),
    "inputs": ({}, {"inputs": False}, lambda found: bool(found.named(".input.")), True, False),
    "outputs": ({}, {"outputs": False}, lambda found: any("/constants/" not in file for file in found.named(".output.")), True, False),
    "selection": (
        {"iteration": "0"},
        {"selection": "marked"},
        lambda found: found.types() & {"convolution", "relu"},
        {"convolution", "relu"},
        {"relu"},
    ),
    "kernels": ({}, {"kernels": ["relu"]}, lambda found: found.types() & {"convolution", "relu"}, {"convolution", "relu"}, {"relu"}),
    "statistic_category": (
        {"saved_data": "statistic"},
        {"statistic_category": ["avg", "md5"]},
        _header,
        ["Max Value", "Min Value", "L2Norm Value"],
        ["Avg Value", "MD5"],
    ),
    "stat_calc_mode": (
        {"saved_data": "statistic", "statistic_category": ["avg", "md5"]},
        {"stat_calc_mode": "device"},
        _header,
        ["Avg Value", "MD5"],
        ["Avg Value"],
    ),
    "save_kernel_args": ({}, {"save_kernel_args": True}, lambda found: bool(found.named("convolution-op5.json")), False, True),
    "sample_num": ({}, {"sample_num": 5}, lambda found: _convolution(found).shape, (1, 1, 5, 5), (5,)),
    "initial_iteration": ({}, {"initial_iteration": 3}, Dumped.steps, {"0", "1"}, {"3", "4"}),
    "op_debug_mode": (
        {},
        {"op_debug_mode": 3},
        lambda found: found.types() - {"Parameter"} == {"mul"},
        False,
        True,
    ),
    "overflow_number": (
        {"op_debug_mode": 3},
        {"overflow_number": 1},
        lambda found: len(found.named("mul.mul-op")) // 3,
        2,
        1,
    ),
    "file_format": ({"file_format": "npy"}, {"file_format": "bin"}, lambda found: bool(found.named(".npy")), True, False),
    "step_level": (
        {"layout": "mindspore-async"},
        {"step_level": True},
        lambda found: {Path(file).parts[0] for file in found.files} >= {"0", "1"},
        False,
        True,
    ),
    "kernel_by_kernel": (
        {"layout": "mindspore-async"},
        {"kernel_by_kernel": True},
        lambda found: bool(found.named("/0/Net/")),
        True,
        False,
    ),
    "class_names_in_scope": (
        {},
        {"class_names_in_scope": False},
        lambda found: sum("0-Conv2d" in op.op_name for op in opdump.open(found.path).ops()) > 0,
        True,
        False,
    ),
    "layout": (
        {},
        {"layout": "mindspore-2.10"},
        lambda found: bool(found.named("Default_network-Sequential_0-Conv2d_convolution-op")),
        False,
        True,
    ),
    "ring": (
        {"saved_data": "statistic", "triggers": []},
        {"ring": 1},
        lambda found: bool(found.named("statistic.csv")),
        True,
        False,
    ),
    "triggers": (
        {"saved_data": "statistic", "ring": 1},
        {"triggers": []},
        lambda found: bool(found.named("statistic.csv")),
        True,
        False,
    ),
    "max_disk": ({}, {"max_disk": 1}, Dumped.steps, {"0", "1"}, {"0"}),
    "min_free_disk": ({}, {"min_free_disk": "9000TB"}, Dumped.steps, {"0", "1"}, set()),
    "max_memory": ({}, {"max_memory": 8}, lambda found: bool(found.named(".npy")), True, False),
    "max_overhead": ({}, {"max_overhead": "5%"}, lambda found: opdump.open(found.path).runs[0].plan.get("max_overhead"), None, 0.05),
    "trailing_comma": (
        {"saved_data": "statistic"},
        {"trailing_comma": True},
        lambda found: {line.endswith(",") for line in found.table()[1:]},
        {False},
        {True},
    ),
}  # fmt: skip
# A CPU has no device id, no device formats and no device precision: only the file next to the dump records the setting.
WITHOUT_EFFECT_HERE: dict[str, tuple[dict[str, Any], str]] = {
    "devices": ({"devices": [1]}, '"support_device": [\n      1\n    ]'),
    "trans_flag": ({"trans_flag": False}, '"trans_flag": false'),
    "device_stat_precision_mode": ({"device_stat_precision_mode": "low"}, '"device_stat_precision_mode": "low"'),
}


def _dumped(path: Path, **settings: Any) -> Dumped:
    with opdump.capture(path=path, **settings) as dump:
        _program(dump)
    return Dumped(path)


def test_the_tables_have_every_field_that_is_a_keyword() -> None:
    told = {
        *EFFECTS,
        *WITHOUT_EFFECT_HERE,
        *ONLY_IN_A_PLAN,
        "path",
        "on_error",
        "reread",
    }  # reread: tests/torch/test_one_look.py
    assert told == {item.name for item in fields(DumpPlan)}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_keyword_does_what_its_field_says(name: str, tmp_path: Path) -> None:
    both, settings, look, before, after = EFFECTS[name]
    assert look(_dumped(tmp_path / "without", **both)) == before
    assert look(_dumped(tmp_path / "with", **{**both, **settings})) == after


@pytest.mark.parametrize("name", WITHOUT_EFFECT_HERE)
def test_a_keyword_without_an_effect_on_a_cpu_is_kept_with_the_dump(name: str, tmp_path: Path) -> None:
    settings, text = WITHOUT_EFFECT_HERE[name]
    plain, dumped = _dumped(tmp_path / "without"), _dumped(tmp_path / "with", **settings)
    config = "rank_0/.dump_metadata/data_dump.json"
    assert text not in (plain.path / config).read_text()
    assert text in (dumped.path / config).read_text()
    assert dumped.types() == plain.types()
    assert len(dumped.files) == len(plain.files)


def _loses_its_directory(path: Path, **settings: Any) -> Any:
    with opdump.capture(path=path, **settings) as dump:
        torch.ones(2).add(1)
        dump.step()
        assert (path / "rank_0").is_dir()
        path.rename(path.with_name(f"{path.name}, moved"))  # one operation, because writers are at work in it
        path.write_text("no directory any more")
        for _ in range(3):
            torch.ones(2).add(1)
            dump.step()
    return dump


def test_the_path_is_where_the_dump_is_and_on_error_ends_the_program_where_it_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DumpPathError):
        _loses_its_directory(tmp_path / "stopped", on_error="stop")
    assert _loses_its_directory(tmp_path / "went on").report.failure
