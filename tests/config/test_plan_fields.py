"""DumpPlan: defaults, keywords, and values that it refuses; every field works as a keyword, or is refused by its name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import opdump
from opdump.configs.dialects import resolve_plan
from opdump.configs.json_text import KEYS
from opdump.configs.mindspore import _PLAN_FIELDS
from opdump.configs.plan_fields import ALWAYS_ON, CaptureKeywords, PlanKeywords, StatisticName
from opdump.errors import ConfigError
from opdump.onnx.recording import plan_of
from opdump.plan import DumpPlan, KernelPattern, ModelSelection, StepSet
from opdump.plan.selection import Exclusion, OperatorRange
from opdump.statistics import OWN


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


_HINTS = get_type_hints(PlanKeywords)
_FIELDS = get_type_hints(DumpPlan)
_OF_CAPTURE = {
    name
    for name, parameter in inspect.signature(inspect.unwrap(opdump.capture), follow_wrapped=False).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}


def test_the_typed_keywords_are_those_that_are_taken() -> None:
    assert set(_HINTS) == {key for keys in KEYS.values() for key in keys} | set(_PLAN_FIELDS) - {"on_error"} | set(
        ALWAYS_ON
    )
    assert set(get_type_hints(CaptureKeywords)) == set(_HINTS) | _OF_CAPTURE
    assert set(get_args(StatisticName)) == set(OWN)


@pytest.mark.parametrize("name", sorted(set(_HINTS) & set(_FIELDS)))
def test_choices_are_those_of_the_plan(name: str) -> None:
    looser = {"path", "kernels", "devices", "statistic_category", "op_debug_mode", "sample_num", "triggers"}
    if name not in looser | {"max_disk", "min_free_disk", "max_memory", "max_overhead"}:
        assert _HINTS[name] == _FIELDS[name]


@pytest.mark.parametrize("name", ["op_debug_mode", "dump_mode", "input_output", "sample_mode", "jit_level"])
def test_choices_of_keys_are_those_that_a_config_may_have(name: str, tmp_path: Any) -> None:
    beside: dict[str, Any] = {"jit_level": {"layout": "mindspore-async"}, "dump_mode": {"kernels": ["conv"]}}
    choices = get_args(_HINTS[name])
    for value in choices:
        settings: dict[str, Any] = {"path": tmp_path, **beside.get(name, {}), name: value}
        resolve_plan(None, settings)
    beyond = max(choices) + 1 if isinstance(choices[0], int) else "O9"
    with pytest.raises(ConfigError, match=name):
        resolve_plan(None, {**settings, name: beyond})


def test_help_and_notebooks_see_every_keyword() -> None:
    for function in (opdump.capture, opdump.start):
        assert next(iter(inspect.signature(function).parameters)) == "config"
        assert set(inspect.signature(function).parameters) == {"config"} | set(_HINTS) | _OF_CAPTURE


def typed_program(name: str) -> None:
    """Never run: the type checker of `make lint` fails if a marked line is not a type error, or another line is one."""
    with opdump.capture(
        path="dump", saved_data="full", iteration="0|5-8", kernels=["conv"], statistic_category=["max"]
    ) as dump:
        dump.step()
    opdump.start("data_dump.json", strict=True, layout="acl").step()
    with opdump.capture(saved_data="ful"):  # type: ignore[arg-type]
        pass
    with opdump.capture(savd_data="full"):  # type: ignore[call-arg]
        pass
    with opdump.capture(path=3, inputs="no"):  # type: ignore[arg-type]
        pass
    opdump.start(steps="0|5-8")  # type: ignore[arg-type]
    for op in opdump.open("dump").ops("Conv2D", step=0):
        largest: float = op.outputs[0].statistics["max"]
        count: int = op.outputs[0].statistics["nan count"]
        text: str = op.outputs[0].statistics["max"]  # type: ignore[assignment]
        print(op.op_name, largest, count, text, op.inputs[0].numpy().mean(), op.inputs[0].torch().mean())
        op.outputs[0].statistics[name].upper()  # type: ignore[union-attr]
