"""data_dump.json of the asynchronous dump: when it applies, and which settings it ignores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opdump.configs.dialects import load_plan as load_any_plan
from opdump.configs.mindspore.plan import load_plan, plan_from_keywords
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern, StepSet


def _write(root: Path, common: Mapping[str, Any] | None = None, name: str = "data_dump.json", **sections: Any) -> Path:
    settings = {
        "dump_mode": 0,
        "path": str(root / "dump"),
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0, 1],
        "op_debug_mode": 0,
        "file_format": "npy",
    }
    file = root / name
    file.write_text(json.dumps({"common_dump_settings": settings | dict(common or {})} | sections), encoding="utf-8")
    return file


def _plan(root: Path, common: Mapping[str, Any] | None = None, **sections: Any) -> DumpPlan:
    return load_plan(_write(root, common, **sections), environ={})


def test_the_documented_example_resolves(root: Path) -> None:
    common = {
        "path": str(root / "absolute_path"),
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "saved_data": "tensor",
        "kernels": ["Default/Conv-op12"],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "statistic_category": ["max", "min", "l2norm"],
    }
    file = _write(root, common)
    assert load_plan(file, environ={}, strict=True) == DumpPlan(
        path=root / "absolute_path",
        net_name="ResNet50",
        steps=StepSet.parse("0|5-8|100-120"),
        devices=frozenset(range(8)),
        layout="mindspore-async",
        file_format="npy",
        config_text=file.read_text(encoding="utf-8"),
    )


@pytest.mark.parametrize("e2e", [None, {}, {"enable": False}, {"trans_flag": True}])
def test_a_file_format_where_nothing_enables_the_synchronous_dump_is_asynchronous(
    e2e: Mapping[str, Any] | None, root: Path
) -> None:
    plan = _plan(root, **({} if e2e is None else {"e2e_dump_settings": e2e}))
    assert (plan.layout, plan.file_format, plan.warnings) == ("mindspore-async", "npy", ())


def test_enable_makes_it_synchronous(root: Path) -> None:
    plan = _plan(root, e2e_dump_settings={"enable": True})
    assert plan.layout == "mindspore-2.3"
    assert "file_format belongs to the asynchronous dump and is ignored" in plan.warnings[0]


def test_enable_is_validated_even_if_it_has_no_effect(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"enable: found .*, expected a boolean"):
        _plan(root, e2e_dump_settings={"enable": "false"})


@pytest.mark.parametrize("value", ["txt", "NPY", "", 1, None, []])
def test_a_file_format_is_npy_or_bin(value: Any, root: Path) -> None:
    with pytest.raises(ConfigError, match=r'file_format: found .*"npy" or "bin"'):
        _plan(root, {"file_format": value})


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_statistics_need_npy(saved_data: str, root: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'saved_data: found .* statistics only in npy files; write "file_format": "npy"'
    ):
        _plan(root, {"file_format": "bin", "saved_data": saved_data})
    assert _plan(root, {"saved_data": saved_data}).saved_data == saved_data


def test_set_dump_belongs_to_the_synchronous_dump(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"dump_mode: found 2.*asynchronous dump, which has no set_dump"):
        _plan(root, {"dump_mode": 2})


def test_settings_of_the_synchronous_dump_have_no_effect_and_are_told(root: Path) -> None:
    e2e = {"enable": False, "sample_mode": 1, "save_kernel_args": True, "stat_calc_mode": "device", "trans_flag": False}
    plan = _plan(root, {"saved_data": "statistic"}, e2e_dump_settings=e2e)
    assert (plan.sample_num, plan.save_kernel_args, plan.stat_calc_mode) == (None, False, "host")
    assert [warning.partition("e2e_dump_settings.")[2] for warning in plan.warnings] == [
        f"{key} belongs to the synchronous dump and has no effect in the asynchronous one"
        for key in ("save_kernel_args", "sample_mode", "stat_calc_mode")
    ]


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_overflow_mode_voids_dump_mode_and_wants_every_iteration(mode: int, root: Path) -> None:
    plan = _plan(root, {"op_debug_mode": mode, "dump_mode": 1, "kernels": ["Conv2D"]})
    assert (plan.captures, plan.selection, plan.kernels) == ("overflow", "all", ())
    assert any("dump_mode is taken as 0" in warning for warning in plan.warnings)
    assert _plan(root, {"op_debug_mode": mode, "dump_mode": 2}).selection == "all"
    with pytest.raises(ConfigError, match=r'iteration: found .*write "iteration": "all"'):
        _plan(root, {"op_debug_mode": mode, "iteration": "0-3"})


def test_exception_mode_dumps_nothing_else(root: Path) -> None:
    common = {
        "op_debug_mode": 4,
        "dump_mode": 1,
        "kernels": ["Conv2D"],
        "iteration": "0-3",
        "saved_data": "full",
        "file_format": "bin",
    }
    plan = _plan(root, common)
    assert (plan.captures, plan.selection, str(plan.steps), plan.saved_data) == ("exception", "all", "all", "tensor")
    assert len(plan.warnings) == 3


def test_dump_mode_1_selects_by_name_and_expression(root: Path) -> None:
    kernels = ["Default/fc-Dense/MatMul-op0", "name-regex(Default/.+)"]
    plan = _plan(root, {"dump_mode": 1, "kernels": kernels})
    assert plan.kernels == tuple(KernelPattern.parse(text) for text in kernels)


def test_opdumps_own_layout_decides(root: Path) -> None:
    plan = _plan(root, opdump={"layout": "mindspore-2.10"})
    assert (plan.layout, len(plan.warnings)) == ("mindspore-2.10", 2)
    plan = _plan(root, e2e_dump_settings={"enable": True}, opdump={"layout": "mindspore-async"})
    assert (plan.layout, plan.file_format) == ("mindspore-async", "npy")


def test_the_variable_of_acl_makes_a_level_of_steps(root: Path) -> None:
    file = _write(root)
    plan = load_plan(None, environ={"MS_ACL_DUMP_CFG_PATH": str(file)})
    assert (plan.layout, plan.step_level, plan.kernel_by_kernel) == ("mindspore-async", True, True)
    # a file without `file_format` is asynchronous too, and so is one that enables the synchronous dump
    config = json.loads(file.read_text(encoding="utf-8"))
    del config["common_dump_settings"]["file_format"]
    file.write_text(json.dumps(config | {"e2e_dump_settings": {"enable": True}}), encoding="utf-8")
    plan = load_plan(file, environ={"MS_ACL_DUMP_CFG_PATH": str(file)})
    assert (plan.layout, plan.step_level, plan.file_format) == ("mindspore-async", True, "bin")


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_jit_level_says_whether_operators_belong_to_a_model(level: str, root: Path) -> None:
    file = _write(root, opdump={"jit_level": level})
    assert load_plan(file, environ={"MS_ACL_DUMP_CFG_PATH": str(file)}).kernel_by_kernel == (level != "O2")
    assert not load_plan(file, environ={}).kernel_by_kernel
    with pytest.raises(ConfigError, match="jit_level only supports"):
        _plan(root, opdump={"jit_level": "O3"})


def test_two_variables_must_name_one_file(root: Path) -> None:
    file, other = _write(root), _write(root, name="other.json")
    environ = {"MINDSPORE_DUMP_CONFIG": str(file), "MS_ACL_DUMP_CFG_PATH": str(root / "." / "data_dump.json")}
    assert load_plan(None, environ=environ).step_level
    assert load_plan(None, environ=environ | {"MS_ACL_DUMP_CFG_PATH": "1"}).step_level
    assert not load_plan(None, environ={"MINDSPORE_DUMP_CONFIG": str(file), "MS_ACL_DUMP_CFG_PATH": ""}).step_level
    with pytest.raises(ConfigError, match="expected the same file or only one of them"):
        load_plan(None, environ=environ | {"MS_ACL_DUMP_CFG_PATH": str(other)})
    assert not load_plan(other, environ=environ).step_level


def test_a_file_format_among_keywords_makes_it_asynchronous(tmp_path: Path) -> None:
    plan = plan_from_keywords(environ={}, path=tmp_path, file_format="bin")
    assert (plan.layout, plan.file_format, plan.step_level) == ("mindspore-async", "bin", False)
    plan = plan_from_keywords(environ={}, path=tmp_path, file_format="npy", step_level=True, kernel_by_kernel=True)
    assert (plan.step_level, plan.kernel_by_kernel) == (True, True)
    plan = plan_from_keywords(environ={}, path=tmp_path, layout="mindspore-async")
    assert (plan.layout, plan.file_format) == ("mindspore-async", "bin")


def test_a_config_of_any_dialect_is_named_by_either_variable(root: Path) -> None:
    file, other = str(_write(root)), str(_write(root, name="other.json"))
    assert load_any_plan(None, environ={"MS_ACL_DUMP_CFG_PATH": file}).step_level
    assert load_any_plan(None, environ={"MINDSPORE_DUMP_CONFIG": file, "MS_ACL_DUMP_CFG_PATH": "1"}).step_level
    with pytest.raises(ConfigError, match="expected the same file"):
        load_any_plan(None, environ={"MINDSPORE_DUMP_CONFIG": file, "MS_ACL_DUMP_CFG_PATH": other})
    with pytest.raises(ConfigError, match="no configuration"):
        load_any_plan(None, environ={"MS_ACL_DUMP_CFG_PATH": "1"})
