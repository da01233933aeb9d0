"""DumpPlan: defaults, JSON, and values that it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern, ModelSelection, StepSet
from opdump.plan.selection import Exclusion, OperatorRange


def test_a_path_alone_makes_a_plan_with_the_dialects_defaults() -> None:
    plan = DumpPlan(path=Path("/tmp/dump"))
    assert plan.steps == StepSet.all()
    assert plan.saves_tensors
    assert not plan.saves_statistics
    assert plan.selects("anything", "at all")
    assert plan.statistic_category == ("max", "min", "l2norm")


@pytest.mark.parametrize(("saved", "tensors", "statistics"), [("tensor", 1, 0), ("statistic", 0, 1), ("full", 1, 1)])
def test_saved_data_names_what_is_written(saved: Any, tensors: int, statistics: int) -> None:
    plan = DumpPlan(path=Path("/tmp/dump"), saved_data=saved)
    assert (plan.saves_tensors, plan.saves_statistics) == (bool(tensors), bool(statistics))


def test_a_cpu_is_dumped_whatever_the_devices() -> None:
    plan = DumpPlan(path=Path("/tmp/dump"), devices=frozenset({1}))
    assert plan.wants_device("cpu", 0)
    assert plan.wants_device("cuda", 1)
    assert not plan.wants_device("cuda", 0)
    assert DumpPlan(path=Path("/tmp/dump")).wants_device("cuda", 5)


def test_only_named_kernels_are_selected() -> None:
    kernels = (KernelPattern.parse("relu"), KernelPattern.parse("Default/fc-Linear/addmm-op0"))
    plan = DumpPlan(path=Path("/tmp/dump"), selection="kernels", kernels=kernels)
    assert plan.selects("Default/act-ReLU/relu-op4", "relu")
    assert plan.selects("Default/fc-Linear/addmm-op0", "addmm")
    assert not plan.selects("Default/fc-Linear/addmm-op1", "addmm")


def test_the_json_holds_every_field_but_text_and_warnings() -> None:
    plan = DumpPlan(
        path=Path("/tmp/dump"),
        config_text="{}",
        warnings=("w",),
        devices=frozenset({2, 1}),
        captures="watch",
        overflow_kinds=frozenset({"atomic"}),
        exception_detail="norm",
        models=(ModelSelection(layers=("a",)),),
        single_operators=False,
        single_operator_models=False,
        dump_level="op",
        layout="mindspore-async",
        file_format="bin",
        stream_in_names=False,
        step_level=True,
        kernel_by_kernel=True,
        dialect="acl",
        on_error="stop",
        checks=("tensor_overflow",),
        triggers=("nan",),
        reread=True,
        max_disk=1000,
        min_free_disk=1000,
        max_memory=1000,
        max_overhead=0.1,
    )
    shown = json.loads(plan.to_json())
    assert set(shown) == set(DumpPlan.__dataclass_fields__) - {"config_text", "layout_chosen", "warnings", "ring"}
    assert shown["models"][0]["layers"] == ["a"]
    assert shown["devices"] == [1, 2]
    assert shown["steps"] == "all"


@pytest.mark.parametrize(
    "settings",
    [
        {"saved_data": "all"},
        {"selection": "some"},
        {"stat_calc_mode": "gpu"},
        {"device_stat_precision_mode": "middle"},
        {"layout": "mindspore"},
        {"sample_num": 0},
        {"selection": "kernels"},
    ],
)
def test_a_field_outside_its_list_is_refused(settings: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        DumpPlan(path=Path("/tmp/dump"), **settings)


PLANS: tuple[dict[str, Any], ...] = (
    {},
    {
        "steps": StepSet.parse("0|5-8"),
        "devices": frozenset({0, 3}),
        "sample_num": 7,
        "statistic_category": ("max", "md5"),
    },
    {"selection": "kernels", "kernels": (KernelPattern.parse("name-regex(a.+)"), KernelPattern.parse("Conv2D"))},
    {"captures": "overflow", "overflow_kinds": frozenset({"atomic"}), "on_error": "stop", "layout": "mindspore-2.10"},
    {
        "layout": "acl",
        "dialect": "acl",
        "models": (
            ModelSelection(),
            ModelSelection(
                model_name="Net",
                layers=("conv1", "conv2"),
                ranges=(OperatorRange("conv1", "fc"),),
                name_exclusions=(Exclusion("fc", frozenset({0, 1}), frozenset()),),
            ),
        ),
    },
)


@pytest.mark.parametrize("fields", PLANS)
def test_a_plan_comes_back_from_its_json(fields: dict[str, Any]) -> None:
    plan = DumpPlan(path=Path("/dump/\udcff"), **fields)
    assert DumpPlan.from_json(plan.to_json()) == plan
    assert DumpPlan.from_json(json.dumps(json.loads(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected the JSON text of a plan"),
        ("[]", "found JSON of list, expected an object"),
        ("{}", "found no path"),
        ('{"path": "/dump", "colour": 1}', "a plan has no field 'colour'"),
        ('{"path": "/dump", "net_name": 1}', "net_name"),
        ('{"path": "/dump", "steps": "9-1"}', "iteration"),
    ],
)
def test_json_that_is_no_plan_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        DumpPlan.from_json(text)
