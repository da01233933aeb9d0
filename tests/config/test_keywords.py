"""The keywords of `capture` and `start` in editors, notebooks and type checkers: the accepted ones, with their types."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import pytest

import opdump
from opdump.configs.dialects import resolve_plan
from opdump.configs.mindspore.plan import _PLAN_FIELDS
from opdump.configs.shared.json_text import KEYS
from opdump.configs.shared.plan_fields import ALWAYS_ON, CaptureKeywords, PlanKeywords, StatisticName
from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.statistics import OWN

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
