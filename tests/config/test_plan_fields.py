"""Every field of DumpPlan works as a keyword, or is refused by its name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import opdump
from opdump.configs.dialects import resolve_plan
from opdump.errors import ConfigError
from opdump.onnx.recording import plan_of
from opdump.plan import DumpPlan, KernelPattern, StepSet

# What a user writes, and the resulting field of the plan.
VALUES: dict[str, tuple[Any, Any]] = {
    "net_name": ("X", "X"),
    "steps": ("2|3", StepSet.of(2, 3)),
    "saved_data": ("full", "full"),
    "inputs": (False, False),
    "outputs": (False, False),
    "selection": ("marked", "marked"),
    "kernels": (["conv"], (KernelPattern.parse("conv"),)),
    "devices": ([1], frozenset({1})),
    "statistic_category": (["max"], ("max",)),
    "stat_calc_mode": ("device", "device"),
    "device_stat_precision_mode": ("low", "low"),
    "trans_flag": (False, False),
    "save_kernel_args": (True, True),
    "sample_num": (5, 5),
    "initial_iteration": (3, 3),
    "op_debug_mode": (3, 3),
    "captures": ("overflow", "overflow"),
    "on_error": ("stop", "stop"),
    "checks": (["tensor_overflow"], ("tensor_overflow",)),
    "overflow_kinds": (["aicore"], frozenset({"aicore"})),
    "overflow_number": (3, 3),
    "exception_detail": ("norm", "norm"),
    "models": ([], ()),
    "single_operators": (False, False),
    "single_operator_models": (False, False),
    "dump_level": ("all", "all"),
    "file_format": ("bin", "bin"),
    "stream_in_names": (False, False),
    "step_level": (True, True),
    "kernel_by_kernel": (True, True),
    "dialect": ("acl", "acl"),
    "class_names_in_scope": (False, False),
    "layout": ("mindspore-2.10", "mindspore-2.10"),
    "trailing_comma": (True, True),
    "ring": (3, 3),
    "triggers": (["nan"], ("nan",)),
    "reread": (True, True),
    "max_disk": ("20GB", 20_000_000_000),
    "min_free_disk": ("512 MiB", 536_870_912),
    "max_memory": (4096, 4096),
    "max_overhead": ("10%", 0.1),
    "layout_chosen": (False, False),
    "config_text": ("{}", "{}"),
    "warnings": (["a"], ("a",)),
}
ONLY_IN_A_PLAN = {
    "captures",
    "checks",
    "overflow_kinds",
    "exception_detail",
    "models",
    "single_operators",
    "single_operator_models",
    "dump_level",
    "stream_in_names",
    "dialect",
    "layout_chosen",
    "config_text",
    "warnings",
}
# Further settings that a value requires.
WITH: dict[str, dict[str, Any]] = {
    "statistic_category": {"saved_data": "statistic"},
    "stat_calc_mode": {"saved_data": "statistic"},
    "overflow_number": {"op_debug_mode": 3},
    "ring": {"saved_data": "statistic"},
    "file_format": {"layout": "mindspore-async"},
    "stream_in_names": {"layout": "mindspore-async"},
    "step_level": {"layout": "mindspore-async"},
    "kernel_by_kernel": {"layout": "mindspore-async"},
}


def test_the_table_has_every_field() -> None:
    assert {item.name for item in fields(DumpPlan)} == {"path", *VALUES}


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("of_onnx", [False, True])
def test_a_field_beside_a_plan_has_its_value(key: str, of_onnx: bool, tmp_path: Path) -> None:
    written, held = VALUES[key]
    layout = WITH.get(key, {}).get("layout", "acl" if of_onnx else "mindspore-2.3")
    plan = DumpPlan(path=tmp_path, layout=layout, saved_data=WITH.get(key, {}).get("saved_data", "tensor"))
    changed = plan_of(plan, **{key: written}) if of_onnx else resolve_plan(plan, {key: written})
    assert getattr(changed, key) == held


@pytest.mark.parametrize("key", VALUES)
def test_a_field_as_a_keyword_has_its_value_or_is_refused_by_name(key: str, tmp_path: Path) -> None:
    written, held = VALUES[key]
    settings = {"path": tmp_path, **WITH.get(key, {}), key: written}
    if key in ONLY_IN_A_PLAN:
        with pytest.raises(ConfigError, match=f"^{key}=.*{key} is a field of DumpPlan"):
            resolve_plan(None, settings)
    else:
        assert getattr(resolve_plan(None, settings), key) == held


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iteration": "1"}, "has no field 'iteration' .*the field is steps"),
        ({"input_output": 1}, "the field is inputs and outputs"),
        ({"savd_data": "full"}, "is saved_data meant"),
        ({"something": 1}, "the fields are path, net_name"),
        ({"selection": "nonsense"}, "selection is 'nonsense', expected one of 'all'"),
        ({"selection": []}, r"selection is \[\], expected one of"),
        ({"selection": 3}, "selection is 3, expected one of"),
        ({"selection": "kernels"}, "`kernels` is empty"),
        (
            {"step_level": True},
            "step_level is True, .* layout 'mindspore-2.3' does not support.*write layout='mindspore-async'",
        ),
        (
            {"kernel_by_kernel": True, "layout": "mindspore-2.10"},
            "kernel_by_kernel is True, .* 'mindspore-2.10' does not",
        ),
        ({"inputs": "no"}, "inputs is 'no', expected True or False"),
        ({"devices": 3}, "devices is 3, expected a list of device ids"),
        ({"devices": "1"}, "devices is '1', expected a list of device ids"),
        ({"step_level": 3}, "step_level is 3, expected True or False"),
    ],
)
def test_a_wrong_setting_is_a_config_error(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_plan(DumpPlan(path=tmp_path), settings)
    if not settings.keys() & {"iteration", "input_output", "savd_data", "something"}:
        with pytest.raises(ConfigError, match=message):
            resolve_plan(None, {"path": tmp_path, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3}, "steps is 3, expected a text"),
        ({"kernels": "conv"}, "kernels is 'conv', expected a list"),
        ({"kernels": [3]}, r"kernels is \[3\], expected a list"),
        ({"sample_num": "5"}, "sample_num is '5', expected"),
        ({"initial_iteration": -1}, "initial_iteration is -1, expected"),
        ({"overflow_kinds": ["x"]}, "overflow_kinds"),
        ({"net_name": 3}, "net_name is 3, expected text"),
        ({"file_format": "bin"}, "file_format is 'bin', which layout 'mindspore-2.3' does not support, expected 'npy'"),
        ({"stream_in_names": False}, "stream_in_names is False, which layout 'mindspore-2.3' does not support"),
    ],
)
def test_a_wrong_field_beside_a_plan_is_a_config_error(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_plan(DumpPlan(path=tmp_path), settings)


@pytest.mark.parametrize("steps", ["2|3", "all", "0", 3, StepSet.of(1)])
def test_capture_says_which_word_means_the_steps_to_dump(steps: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r'expected "auto" or "manual".*use iteration='),
        opdump.capture(path=tmp_path, steps=steps),
    ):
        pass
