"""A plan round-trips through its JSON, whatever it contains and whichever configuration it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from opdump.configs.dialects import load_plan
from opdump.configs.mindspore import plan_from_keywords
from opdump.errors import OpdumpError
from opdump.plan import TRIGGERS, DumpPlan, Exclusion, KernelPattern, ModelSelection, OperatorRange, StepSet
from opdump.statistics import OWN
from tests.config.verdicts import load, run

NAMES = st.text(st.characters(exclude_characters='"'), min_size=1, max_size=8)
SLOTS = st.frozensets(st.integers(0, 5), max_size=3)
EXCLUSIONS = st.lists(st.builds(Exclusion, NAMES, SLOTS, SLOTS), max_size=2).map(tuple)
MODELS = st.builds(
    ModelSelection,
    model_name=st.none() | NAMES,
    layers=st.none() | st.lists(NAMES, max_size=3).map(tuple),
    watcher_nodes=st.lists(NAMES, max_size=2).map(tuple),
    ranges=st.lists(st.builds(OperatorRange, NAMES, NAMES), max_size=2).map(tuple),
    type_exclusions=EXCLUSIONS,
    name_exclusions=EXCLUSIONS,
)
STEPS = st.sampled_from(["all", "0", "0|5-8|100-120", "18446744073709551615"])
KERNELS = st.sampled_from(["Conv2D", "Default/fc-Dense/MatMul-op1", "name-regex(Default/.+)", ""])
PLANS: dict[str, st.SearchStrategy[Any]] = {
    "path": st.sampled_from([Path("/dump"), Path("/"), Path("relative"), Path("/tag/ü \udcff")]),
    "net_name": st.sampled_from(["Net", "ü", 'a"b\\c']),
    "steps": STEPS.map(StepSet.parse),
    "saved_data": st.sampled_from(["tensor", "statistic", "full"]),
    "inputs": st.booleans(),
    "outputs": st.booleans(),
    "selection": st.sampled_from(["all", "kernels", "marked"]),
    "kernels": st.lists(KERNELS.map(KernelPattern.parse), max_size=3).map(tuple),
    "devices": st.none() | SLOTS,
    "statistic_category": st.lists(st.sampled_from(sorted(OWN)), unique=True).map(tuple),
    "stat_calc_mode": st.sampled_from(["host", "device"]),
    "device_stat_precision_mode": st.sampled_from(["high", "low"]),
    "trans_flag": st.booleans(),
    "save_kernel_args": st.booleans(),
    "sample_num": st.none() | st.integers(1, 2**32 - 1),
    "initial_iteration": st.integers(0, 2**32 - 1),
    "op_debug_mode": st.integers(0, 4),
    "captures": st.sampled_from(["data", "overflow", "exception", "watch"]),
    "overflow_kinds": st.frozensets(st.sampled_from(["aicore", "atomic"])),
    "overflow_number": st.integers(0, 9),
    "exception_detail": st.sampled_from(["brief", "norm", "detail"]),
    "models": st.none() | st.lists(MODELS, max_size=3).map(tuple),
    "single_operators": st.booleans(),
    "single_operator_models": st.booleans(),
    "dump_level": st.sampled_from(["op", "kernel", "all"]),
    "file_format": st.sampled_from(["npy", "bin"]),
    "stream_in_names": st.booleans(),
    "step_level": st.booleans(),
    "kernel_by_kernel": st.booleans(),
    "dialect": st.sampled_from(["mindspore", "acl", "tensorflow"]),
    "class_names_in_scope": st.booleans(),
    "layout": st.sampled_from(["mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl", "packed"]),
    "on_error": st.sampled_from(["continue", "stop"]),
    "checks": st.none() | st.lists(st.sampled_from(["recommended", "tensor_overflow"])).map(tuple),
    "trailing_comma": st.booleans(),
    "ring": st.integers(0, 9),
    "triggers": st.lists(st.sampled_from(TRIGGERS), unique=True).map(tuple),
    "reread": st.booleans(),
    "max_disk": st.none() | st.integers(1, 10**15),
    "min_free_disk": st.none() | st.integers(1, 10**15),
    "max_memory": st.none() | st.integers(1, 10**15),
    "max_overhead": st.none() | st.floats(1e-6, 1e6),
}
CONFIGS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "mindspore": {
        "iteration": STEPS,
        "dump_mode": st.integers(0, 2),
        "input_output": st.integers(0, 2),
        "kernels": st.lists(KERNELS, max_size=3),
        "support_device": st.lists(st.integers(0, 7), unique=True),
        "op_debug_mode": st.integers(0, 4),
        "saved_data": st.sampled_from(["tensor", "statistic", "full"]),
        "statistic_category": st.lists(st.sampled_from(sorted(OWN)), unique=True),
        "net_name": st.sampled_from(["Net", "ü"]),
        "sample_num": st.integers(1, 9),
        "overflow_number": st.integers(0, 9),
        "enable": st.booleans(),
        "file_format": st.sampled_from(["npy", "bin"]),
        "layout": st.sampled_from(["mindspore-2.3", "mindspore-2.10", "mindspore-async"]),
        "step_level": st.booleans(),
        "on_error": st.sampled_from(["continue", "stop"]),
    },
    "acl": {
        "dump_list": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "model_name": NAMES,
                    "layer": st.lists(NAMES, max_size=2),
                    "watcher_nodes": st.lists(NAMES, min_size=1, max_size=2),
                    "opname_range": st.lists(st.fixed_dictionaries({"begin": NAMES, "end": NAMES}), max_size=2),
                    "opname_blacklist": st.lists(
                        st.fixed_dictionaries({"name": NAMES, "pos": st.just(["input0", "output1"])}), max_size=1
                    ),
                },
            ),
            max_size=2,
        ),
        "dump_mode": st.sampled_from(["input", "output", "all"]),
        "dump_level": st.sampled_from(["op", "kernel", "all"]),
        "dump_data": st.sampled_from(["tensor", "stats"]),
        "dump_stats": st.lists(st.sampled_from(["Max", "Min", "Avg", "Nan"]), min_size=1, unique=True),
        "dump_step": st.sampled_from(["0", "0|3-5", ""]),
        "dump_op_switch": st.sampled_from(["on", "off"]),
        "dump_debug": st.sampled_from(["on", "off"]),
        "dump_scene": st.sampled_from(["", "lite_exception", "aic_err_norm_dump", "aic_err_detail_dump", "watcher"]),
    },
    "tensorflow": {
        "enable_dump": st.booleans(),
        "enable_dump_debug": st.booleans(),
        "dump_step": st.sampled_from(["0", "0|5-10", ""]),
        "dump_mode": st.sampled_from(["input", "output", "all"]),
        "dump_debug_mode": st.sampled_from(["aicore_overflow", "atomic_overflow", "all"]),
        "dump_data": st.sampled_from(["tensor", "stats"]),
        "dump_layer": st.sampled_from(["", "conv1 conv2"]),
        "enable_exception_dump": st.integers(0, 2),
        "use_off_line": st.booleans(),
    },
}
RARELY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
)


def assert_comes_back(plan: DumpPlan) -> None:
    """`config_text`, `layout_chosen` and `warnings` are neither compared nor part of the JSON."""
    again = DumpPlan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


@given(st.fixed_dictionaries({"path": PLANS["path"]}, optional={k: v for k, v in PLANS.items() if k != "path"}))
@RARELY
def test_a_plan_comes_back_from_its_json(values: Mapping[str, Any]) -> None:
    try:
        plan = DumpPlan(**values)
    except OpdumpError:
        assume(False)  # fields that exclude each other
    assert_comes_back(plan)


def test_the_plans_have_every_field() -> None:
    assert set(PLANS) == set(DumpPlan.__dataclass_fields__) - {"config_text", "layout_chosen", "warnings"}


@pytest.mark.parametrize("dialect", CONFIGS)
@given(data=st.data())
@RARELY
def test_what_a_dialect_gives_comes_back(dialect: Any, data: st.DataObject, root: Path) -> None:
    keys = data.draw(st.fixed_dictionaries({}, optional=CONFIGS[dialect]))
    file = root / "config.json"
    try:
        if dialect == "mindspore":
            plan = plan_from_keywords(environ={}, path=root / "dump", **keys)
        else:
            file.write_text(json.dumps(keys if dialect == "tensorflow" else {"dump": keys}), encoding="utf-8")
            plan = load_plan(file, environ={}, dialect=dialect, path=root / "dump")
    except OpdumpError:
        assume(False)  # values that exclude each other
    assert plan.dialect == dialect
    assert_comes_back(plan)


@pytest.mark.parametrize("name", ["verdicts.json", "observed_verdicts.json"])
def test_what_the_configs_that_mindspore_saw_give_comes_back(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_plans = 0
    for number, case in enumerate(load(name)):
        place = root / str(number)
        place.mkdir()
        plan = run(case, place, monkeypatch)
        if isinstance(plan, DumpPlan):
            assert_comes_back(plan)
            given_plans += 1
    assert given_plans


def test_what_the_acl_files_give_comes_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "dump").mkdir()
    monkeypatch.chdir(root)
    given_plans = 0
    for vector in load("acl_vectors.json"):
        file = root / "acl.json"
        file.write_text(vector["text"], encoding="utf-8")
        try:
            version = vector.get("version", "seed")
            plan = load_plan(file, environ={"HOME": str(root)}, dialect="acl", dialect_version=version)
        except OpdumpError:
            continue
        assert_comes_back(plan)
        assert_comes_back(replace(plan, on_error="stop"))
        given_plans += 1
    assert given_plans
