"""For every argument of `capture` and every field of a plan, a value of another type or outside its list is a
ConfigError that names both.
"""

from __future__ import annotations

import inspect
import math
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import opdump
from opdump.configs.dialects import resolve_plan
from opdump.errors import ConfigError
from opdump.onnx import session
from opdump.plan import DumpPlan, Exclusion, KernelPattern, ModelSelection, OperatorRange, StepSet
from opdump.tensorflow import install


class _Mute:
    """A value that has no repr and equals nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "zero": 0,
    "three": 3,
    "a negative number": -1,
    "a fraction": 2.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "a huge number": 10**30,
    "a number too long to be written": 10**5000,
    "an empty text": "",
    "a word": "maybe",
    "a word in capitals": "TENSOR",
    "NUL": "a\0b",
    "a surrogate": "\ud800",
    "a path out": "../x",
    "bytes": b"x",
    "a list": [],
    "a list of a number": [3],
    "a list of None": [None],
    "a list of a list": [["max"]],
    "a mapping": {},
    "a mapping of a number": {"a": 1},
    "a tuple of None": (None,),
    "a type": int,
    "an object": object(),
    "something mute": _Mute(),
}
_FLAG = {"True"}
_NUMBER = {"zero", "three"}
_TEXT = {"an empty text", "a word", "a word in capitals", "NUL", "a surrogate", "a path out"}
# The only VALUES that are valid for each.
ARGUMENTS: dict[str, set[str]] = {
    "config": {"None"},
    **dict.fromkeys(("eager", "stop_after_dump", "strict", "overflow", "on_exception", "children"), _FLAG),
    "steps": set(),
    "watch": {"None", "a word", "a word in capitals", "NUL", "a surrogate", "a path out", "a list of a list"},
    "framework": set(),
    "device_id": _NUMBER | {"None"},
    "on_error": {"None"},
}
FIELDS: dict[str, set[str]] = {
    **{item.name: set() for item in fields(DumpPlan)},
    **{item.name: _FLAG for item in fields(DumpPlan) if item.type == "bool"},
    "net_name": {"a word", "a word in capitals", "a surrogate"},
    "config_text": _TEXT,
    "devices": {"None"},
    "models": {"None"},
    "checks": {"None"},
    "sample_num": {"None", "three"},
    "initial_iteration": _NUMBER,
    "op_debug_mode": _NUMBER,
    "overflow_number": _NUMBER,
    "ring": _NUMBER,
    **{name: {"None", "three"} for name in ("max_disk", "min_free_disk", "max_memory")},
    "max_overhead": {"None", "three", "a fraction"},
}
# Values that a keyword also accepts: lists for tuples, strings for paths, None for unset.
_LISTS = ("kernels", "devices", "statistic_category", "overflow_kinds", "models", "warnings", "checks", "triggers")
_LOOSER: dict[str, set[str]] = {
    "path": {"a word", "a word in capitals", "a path out"},
    "devices": {"a list of a number"},
}


def _refused(allowed: set[str]) -> list[str]:
    return [kind for kind in VALUES if kind not in allowed]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_argument_of_capture_is_refused(name: str, tmp_path: Path) -> None:
    for kind in _refused(ARGUMENTS[name]):
        given = {"config": DumpPlan(path=tmp_path / "dump"), name: VALUES[kind]}
        with pytest.raises(ConfigError) as told, opdump.capture(**given):
            raise AssertionError("the capture began")
        assert name in str(told.value) or "config file" in str(told.value), kind
        assert "expected" in str(told.value) or name == "config", kind
        assert len(str(told.value)) < 1000, kind
        assert not (tmp_path / "dump").exists(), kind


def test_the_table_has_every_argument() -> None:
    assert {*ARGUMENTS, "settings"} == set(inspect.signature(inspect.unwrap(opdump.capture)).parameters)


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_of_a_field_is_refused(name: str, tmp_path: Path) -> None:
    for kind in _refused(FIELDS[name]):
        with pytest.raises(ConfigError, match=rf"DumpPlan: {name} .*expected"):
            DumpPlan(**{"path": tmp_path, name: VALUES[kind]})


@pytest.mark.parametrize("beside", ["a plan", "nothing"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_of_a_keyword_is_refused(name: str, beside: str, tmp_path: Path) -> None:
    allowed = {*FIELDS[name], *_LOOSER.get(name, ()), *({"a list"} if name in _LISTS else ())}
    for kind in _refused(allowed | {"None"}):
        given = {"path": tmp_path / "dump", name: VALUES[kind]}
        plan = DumpPlan(path=tmp_path / "dump") if beside == "a plan" else None
        with pytest.raises(ConfigError) as told:
            resolve_plan(plan, given)
        assert name in str(told.value) or name == "steps", (kind, told.value)
        assert len(str(told.value)) < 2000, kind
        assert not (tmp_path / "dump").exists(), kind


@pytest.mark.parametrize("saved_data", ["tensor", "statistic", "full"])
def test_an_unknown_statistic_is_refused_whatever_is_saved(saved_data: str, tmp_path: Path) -> None:
    for names in (["maximum"], ["max", "nope"], "max", [None], [1], {"max": 1}):
        with pytest.raises(ConfigError, match="statistic_category"):
            resolve_plan(None, {"path": tmp_path, "saved_data": saved_data, "statistic_category": names})
        with pytest.raises(ConfigError, match="statistic_category"):
            resolve_plan(DumpPlan(path=tmp_path), {"saved_data": saved_data, "statistic_category": names})
    with (
        pytest.raises(ConfigError, match="names from 'max'"),
        opdump.capture(DumpPlan(path=tmp_path, statistic_category=("nope",))),
    ):
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelSelection(model_name=3),  # type: ignore[arg-type]
        lambda: ModelSelection(layers=["conv"]),  # type: ignore[arg-type]
        lambda: ModelSelection(layers=(3,)),  # type: ignore[arg-type]
        lambda: ModelSelection(watcher_nodes="conv"),  # type: ignore[arg-type]
        lambda: ModelSelection(ranges=(("a", "b"),)),  # type: ignore[arg-type]
        lambda: OperatorRange("a", None),  # type: ignore[arg-type]
        lambda: Exclusion("a", inputs={0}),  # type: ignore[arg-type]
        lambda: Exclusion("a", outputs=frozenset({-1})),
        lambda: Exclusion("a", outputs=frozenset({True})),
    ],
)
def test_a_wrong_entry_of_a_dump_list_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"^(ModelSelection|OperatorRange|Exclusion): \w+ is .*, expected"):
        make()


@pytest.mark.parametrize(
    "what", [5, 0, True, 2.5, "", b"x", [5], ["", "a"], {"a": 5}, {3: "a"}, {"": "a"}, [[object()]], [], {}, (None,)]
)
def test_what_cannot_be_watched_is_refused(what: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="watch"), opdump.capture(path=tmp_path, watch=what):
        raise AssertionError("the capture began")


@pytest.mark.parametrize("name", ["strict", "optimize", "on_error"])
def test_a_wrong_argument_of_an_onnx_session_is_refused(name: str, tmp_path: Path) -> None:
    for kind in _refused({"None", *(_FLAG if name == "strict" else ())}):
        with (
            pytest.raises(ConfigError, match=f"session: {name} .*expected"),
            session("no.onnx", DumpPlan(path=tmp_path), **{name: VALUES[kind]}),
        ):
            raise AssertionError("the session began")


@pytest.mark.parametrize("name", ["stream_in_names", "streams", "on_error"])
def test_a_wrong_argument_of_tensorflow_install_is_refused(name: str) -> None:
    for kind in _refused({"None", *(() if name == "on_error" else _FLAG)}):
        with pytest.raises(ConfigError, match=f"install: {name} .*expected"):
            install(**{name: VALUES[kind]})


def test_every_field_has_a_type_that_is_looked_at(tmp_path: Path) -> None:
    # An unknown type hint would disable the check.
    known = (bool, int, float, str, Path, StepSet, KernelPattern, ModelSelection, type(None))

    def leaves(hint: Any) -> list[Any]:
        if typing.get_origin(hint) is typing.Literal:
            return []
        inner = [each for each in typing.get_args(hint) if each is not ...]
        return [leaf for each in inner for leaf in leaves(each)] if inner else [hint]

    for name, hint in typing.get_type_hints(DumpPlan).items():
        assert set(leaves(hint)) <= set(known), name
    DumpPlan(path=tmp_path, kernels=(KernelPattern.parse("conv"),), devices=frozenset({1}), models=())
