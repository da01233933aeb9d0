"""How the keys of data_dump.json map to the plan, which values are converted, and when the asynchronous dump applies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opdump.configs.dialects import load_plan as load_any_plan
from opdump.configs.mindspore import load_plan, plan_from_keywords
from opdump.errors import ConfigError, DumpPathError
from opdump.plan import DumpPlan, KernelPattern, OverflowKind, StepSet


def _write(
    root: Path, common: Mapping[str, Any] | None = None, e2e: Mapping[str, Any] | None = None, **sections: Any
) -> Path:
    settings = {
        "dump_mode": 0,
        "path": str(root / "dump"),
        "net_name": "Net",
        "iteration": "all",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": [0, 1],
        "op_debug_mode": 0,
    }
    file = root / "data_dump.json"
    config = {
        "common_dump_settings": settings | dict(common or {}),
        "e2e_dump_settings": {"enable": True, **(e2e or {})},
    }
    file.write_text(json.dumps(config | sections), encoding="utf-8")
    return file


def _plan(
    root: Path, common: Mapping[str, Any] | None = None, e2e: Mapping[str, Any] | None = None, **sections: Any
) -> DumpPlan:
    return load_plan(_write(root, common, e2e, **sections), environ={})


def test_the_documented_example_resolves(root: Path) -> None:
    common = {
        "path": str(root / "absolute_path"),
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "kernels": ["Default/Conv-op12"],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "statistic_category": ["max", "min", "l2norm"],
    }
    file = _write(root, common, {"enable": True, "trans_flag": True, "stat_calc_mode": "host"})
    plan = load_plan(file, environ={})
    assert plan == DumpPlan(
        path=root / "absolute_path",
        net_name="ResNet50",
        steps=StepSet.parse("0|5-8|100-120"),
        devices=frozenset(range(8)),
        config_text=file.read_text(encoding="utf-8"),
    )


def test_every_key_reaches_the_plan(root: Path) -> None:
    plan = _plan(
        root,
        {
            "dump_mode": 1,
            "iteration": "10|12",
            "saved_data": "statistic",
            "input_output": 2,
            "kernels": ["Conv2D", "name-regex(Default/.+)"],
            "support_device": [3],
            "statistic_category": ["md5", "avg"],
            "initial_iteration": 10,
        },
        {
            "trans_flag": False,
            "save_kernel_args": True,
            "stat_calc_mode": "host",
            "device_stat_precision_mode": "low",
            "sample_mode": 1,
            "sample_num": 7,
        },
        opdump={"layout": "mindspore-2.10", "class_names_in_scope": False, "trailing_comma": True},
    )
    shown = json.loads(plan.to_json())
    assert shown == {
        "path": str(root / "dump"),
        "net_name": "Net",
        "steps": "10|12",
        "saved_data": "statistic",
        "inputs": False,
        "outputs": True,
        "selection": "kernels",
        "kernels": ["Conv2D", "name-regex(Default/.+)"],
        "devices": [3],
        "statistic_category": ["md5", "avg"],
        "stat_calc_mode": "host",
        "device_stat_precision_mode": "low",
        "trans_flag": False,
        "save_kernel_args": True,
        "sample_num": 7,
        "initial_iteration": 10,
        "op_debug_mode": 0,
        "overflow_number": 0,
        "class_names_in_scope": False,
        "layout": "mindspore-2.10",
        "trailing_comma": True,
    }
    assert plan.warnings == ()


@pytest.mark.parametrize(("value", "inputs", "outputs"), [(0, True, True), (1, True, False), (2, False, True)])
def test_input_output_names_the_sides(value: int, inputs: bool, outputs: bool, root: Path) -> None:
    plan = _plan(root, {"input_output": value})
    assert (plan.inputs, plan.outputs) == (inputs, outputs)


@pytest.mark.parametrize(
    ("common", "selection"),
    [
        ({"dump_mode": 0, "kernels": ["Conv2D", "name-regex(("]}, "all"),
        ({"dump_mode": 1, "kernels": ["Conv2D"]}, "kernels"),
        ({"dump_mode": 1, "kernels": []}, "all"),
        ({"dump_mode": 1, "kernels": ["", ' " " ']}, "all"),
        ({"dump_mode": 2, "kernels": ["Conv2D"]}, "marked"),
    ],
)
def test_dump_mode_says_how_operators_are_selected(common: Mapping[str, Any], selection: str, root: Path) -> None:
    assert _plan(root, common).selection == selection


def test_kernels_that_are_no_strings_are_taken_as_their_text(root: Path) -> None:
    plan = _plan(root, {"dump_mode": 1, "kernels": [1, None, True, {"b": 1, "a": "x"}, 1.5]})
    assert [pattern.text for pattern in plan.kernels] == ["1", "null", "true", "{a:x,b:1}", "1.5"]


def test_duplicates_are_reported_and_dropped(root: Path) -> None:
    plan = _plan(root, {"dump_mode": 1, "kernels": ["ReLU", "Re LU", "MatMul"], "support_device": [1, 1, 2]})
    assert plan.kernels == (KernelPattern.parse("ReLU"), KernelPattern.parse("MatMul"))
    assert plan.devices == frozenset({1, 2})
    assert [warning.partition("common_dump_settings.")[2] for warning in plan.warnings] == [
        "kernels: duplicate entry 'ReLU'",
        "support_device: duplicate device 1",
    ]


def test_devices_are_kept_to_32_bits(root: Path) -> None:
    assert _plan(root, {"support_device": [-1, True, 2.9, 2**32]}).devices == frozenset({2**32 - 1, 1, 2, 0})


@pytest.mark.parametrize(
    ("e2e", "number"),
    [
        ({}, None),
        ({"sample_num": "ignored"}, None),
        ({"sample_mode": 0, "sample_num": -1}, None),
        ({"sample_mode": 1}, 100),
        ({"sample_mode": 1, "sample_num": 5}, 5),
    ],
)
def test_sample_num_counts_under_sample_mode_1_alone(e2e: Mapping[str, Any], number: int | None, root: Path) -> None:
    assert _plan(root, e2e=e2e).sample_num == number


@pytest.mark.parametrize("saved_data", ["tensor", "full"])
def test_the_device_calculates_nothing_where_tensors_are_saved(saved_data: str, root: Path) -> None:
    plan = _plan(root, {"saved_data": saved_data}, {"stat_calc_mode": "device"})
    assert plan.stat_calc_mode == "host"
    assert any("stat_calc_mode is taken as" in warning for warning in plan.warnings)


def test_the_device_has_four_statistics(root: Path) -> None:
    every = ["max", "md5", "avg", "nan count", "max", "l2norm"]
    plan = _plan(root, {"saved_data": "statistic", "statistic_category": every}, {"stat_calc_mode": "device"})
    assert plan.stat_calc_mode == "device"
    assert plan.statistic_category == ("max", "avg", "l2norm")
    (warning,) = plan.warnings
    assert "md5, nan count" in warning


def test_names_of_one_statistic_are_folded_in_order(root: Path) -> None:
    names = ["hash:md5", "hash:sha1", "min", "md5", "hash", "min"]
    plan = _plan(root, {"saved_data": "full", "statistic_category": names})
    assert plan.statistic_category == ("md5", "hash", "min")


def test_statistic_category_may_be_empty(root: Path) -> None:
    assert _plan(root, {"saved_data": "full", "statistic_category": []}).statistic_category == ()


@pytest.mark.parametrize("names", [["bogus", "max"], [1], [None], [["max"]], ["Max"]])
def test_an_unknown_statistic_is_an_error_that_lists_the_known(names: list[Any], root: Path) -> None:
    with pytest.raises(ConfigError, match=r'statistic_category is invalid: .*expected names from "max", "min"'):
        _plan(root, {"saved_data": "statistic", "statistic_category": names})


@pytest.mark.parametrize("value", ["max", 1, None, {}])
def test_statistic_category_must_be_an_array(value: Any, root: Path) -> None:
    with pytest.raises(ConfigError, match=r"statistic_category: found .*, expected an array"):
        _plan(root, {"saved_data": "statistic", "statistic_category": value})
    assert _plan(root, {"saved_data": "tensor", "statistic_category": value}).statistic_category


@pytest.mark.parametrize(
    ("mode", "kinds"), [(1, {"aicore"}), (2, {"atomic"}), (3, {"aicore", "atomic"}), (2**32 + 3, {"aicore", "atomic"})]
)
def test_op_debug_mode_of_overflows_looks_at_every_operator(mode: int, kinds: set[OverflowKind], root: Path) -> None:
    plan = _plan(
        root, {"op_debug_mode": mode, "dump_mode": 1, "kernels": ["Conv2D"], "input_output": 2, "overflow_number": 5}
    )
    assert (plan.captures, set(plan.overflow_kinds), plan.overflow_number) == ("overflow", kinds, 5)
    assert (plan.selection, plan.kernels, plan.inputs, plan.outputs) == ("all", (), True, True)
    said = [warning.partition("common_dump_settings.")[2].partition(" ")[0] for warning in plan.warnings]
    assert said == ["dump_mode", "input_output"]


def test_op_debug_mode_of_failures_looks_at_every_step_and_keeps_tensors(root: Path) -> None:
    common = {"op_debug_mode": 4, "iteration": "3", "saved_data": "statistic", "input_output": 1}
    plan = _plan(root, common, {"sample_mode": 1, "sample_num": 7})
    assert (plan.captures, str(plan.steps), plan.saved_data, plan.sample_num) == ("exception", "all", "tensor", None)
    assert plan.inputs
    assert len(plan.warnings) == 4


@pytest.mark.parametrize("mode", [0, 4])
def test_overflow_number_belongs_to_overflows(mode: int, root: Path) -> None:
    with pytest.raises(ConfigError, match="overflow_number has an effect only if op_debug_mode is 1 to 3"):
        _plan(root, {"op_debug_mode": mode, "overflow_number": 1})


def test_unknown_keys_are_reported_with_the_nearest_known_key(root: Path) -> None:
    file = _write(
        root, {"satistic_category": [], "enable": True}, {"trans_flags": True}, e2e_dump_setting={}, opdumps={}, zzz=1
    )
    warnings = load_plan(file, environ={}).warnings
    assert [warning.removeprefix(f"{file}: ") for warning in warnings] == [
        "unknown section 'e2e_dump_setting' is ignored; the nearest known key is \"e2e_dump_settings\"",
        "unknown section 'opdumps' is ignored; the nearest known key is \"opdump\"",
        "unknown section 'zzz' is ignored; known keys: common_dump_settings, e2e_dump_settings, opdump",
        "common_dump_settings: unknown key 'satistic_category' is ignored; the nearest known key is \"statistic_category\"",
        "common_dump_settings: unknown key 'enable' is ignored; it belongs in e2e_dump_settings",
        "e2e_dump_settings: unknown key 'trans_flags' is ignored; the nearest known key is \"trans_flag\"",
    ]
    with pytest.raises(ConfigError, match="'satistic_category' is an error under strict"):
        load_plan(file, environ={}, strict=True)


def test_strict_has_nothing_against_known_keys(root: Path) -> None:
    file = _write(root, {"file_format": "npy"}, async_dump_settings={"enable": True}, opdump={})
    plan = load_plan(file, environ={}, strict=True)
    assert len(plan.warnings) == 2


@pytest.mark.parametrize(
    ("section", "layout"), [({}, "mindspore-2.3"), ({"layout": "mindspore-2.10"}, "mindspore-2.10")]
)
def test_a_section_of_old_versions_is_reported_with_what_is_dumped_without_it(
    root: Path, section: dict[str, str], layout: str
) -> None:
    plan = load_plan(_write(root, async_dump_settings={"enable": True}, opdump=section), environ={})
    (text,) = [text for text in plan.warnings if "async_dump_settings" in text]
    assert "have no effect" in text
    assert f"written in the layout '{layout}'" in text
    assert 'write "opdump": {"layout": "mindspore-async"}' in text


def test_a_missing_key_points_at_the_one_that_may_be_meant(root: Path) -> None:
    file = _write(root)
    file.write_text(file.read_text(encoding="utf-8").replace('"iteration"', '"Iterations"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="iteration not found, and it is required; found 'Iterations'"):
        load_plan(file, environ={})


def test_a_missing_e2e_section_is_reported_and_not_waited_for(root: Path) -> None:
    file = _write(root)
    config = json.loads(file.read_text(encoding="utf-8"))
    del config["e2e_dump_settings"]
    file.write_text(json.dumps(config), encoding="utf-8")
    (warning,) = load_plan(file, environ={}).warnings
    assert "e2e_dump_settings is missing" in warning


def test_enable_false_dumps_all_the_same_and_says_so(root: Path) -> None:
    (warning,) = _plan(root, e2e={"enable": False}).warnings
    assert "enable is false" in warning


def test_a_section_without_enable_says_so_too(root: Path) -> None:
    file = _write(root)
    config = json.loads(file.read_text(encoding="utf-8"))
    config["e2e_dump_settings"] = {"trans_flag": True}
    file.write_text(json.dumps(config), encoding="utf-8")
    (warning,) = load_plan(file, environ={}).warnings
    assert "e2e_dump_settings.enable is missing, and the dump is made anyway" in warning


def test_the_asynchronous_dumps_key_is_ignored(root: Path) -> None:
    (warning,) = _plan(root, {"file_format": "txt"}, {"enable": True}).warnings
    assert "file_format belongs to the asynchronous dump" in warning


def test_text_after_the_config_and_keys_given_twice_are_reported(root: Path) -> None:
    file = _write(root)
    text = file.read_text(encoding="utf-8").replace('"input_output": 0', '"input_output": 9, "input_output": 1')
    file.write_text(text + "\n// the end", encoding="utf-8")
    plan = load_plan(file, environ={})
    assert not plan.outputs
    assert plan.config_text.endswith("// the end")
    assert len(plan.warnings) == 2
    assert "the last one is used: input_output" in plan.warnings[0]
    assert "text after the end" in plan.warnings[1]


def test_steps_before_the_first_one_are_reported_or_refused(root: Path) -> None:
    (warning,) = _plan(root, {"iteration": "3|12", "initial_iteration": 10}).warnings
    assert "before initial_iteration 10" in warning
    with pytest.raises(ConfigError, match="matches no step, because the first step is 10"):
        _plan(root, {"iteration": "0-9", "initial_iteration": 10})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"layout": "mindspore-2"}, r'layout only supports "mindspore-2.3" or .*; write "mindspore-2'),
        ({"layout": 2.3}, "opdump.layout: found 2.3 .*, expected a string"),
        ({"trailing_comma": 1}, "opdump.trailing_comma: found 1 .*, expected a boolean"),
        ({"class_names_in_scope": "no"}, "opdump.class_names_in_scope: found .*, expected a boolean"),
        ([], "opdump: found .*, expected an object"),
    ],
)
def test_opdumps_own_section_is_checked_like_the_others(section: Any, message: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan(root, opdump=section)


def test_keyword_arguments_replace_keys_of_any_section(root: Path) -> None:
    file = _write(root)
    plan = load_plan(
        file,
        environ={},
        path=root / "a dir.d" / "dump",
        saved_data="full",
        iteration=StepSet.of(2),
        kernels=("Conv2D",),
        sample_mode=1,
        layout="mindspore-2.10",
        net_name=None,
    )
    assert plan.path == root / "a dir.d" / "dump"
    assert plan.path.is_dir()
    assert (plan.saved_data, str(plan.steps), plan.sample_num, plan.layout) == ("full", "2", 100, "mindspore-2.10")
    assert plan.selection == "kernels"
    assert plan.net_name == "Net"


def test_fields_of_the_plan_replace_keys_too(root: Path) -> None:
    plan = load_plan(
        _write(root, {"iteration": "no steps"}),
        environ={},
        steps=StepSet.parse("3-5"),
        inputs=False,
        kernels=(KernelPattern.parse("name-regex(.*)"),),
        devices=frozenset({7}),
        sample_num=9,
    )
    assert (str(plan.steps), plan.inputs, plan.outputs, plan.devices) == ("3-5", False, True, frozenset({7}))
    assert [pattern.kind for pattern in plan.kernels] == ["regex"]
    assert plan.sample_num == 9
    assert load_plan(_write(root), environ={}, selection="marked").selection == "marked"


def test_a_keyword_that_is_no_key_is_refused_with_the_nearest(root: Path) -> None:
    with pytest.raises(ConfigError, match="is iteration meant"):
        load_plan(_write(root), environ={}, iterations="0")
    with pytest.raises(ConfigError, match=r"saved_data: found .*, expected saved_data only supports"):
        load_plan(_write(root), environ={}, saved_data="all")


def test_keywords_alone_make_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan_from_keywords(environ={}, path="dump") == DumpPlan(path=tmp_path / "dump")
    plan = plan_from_keywords(environ={"MS_DIAGNOSTIC_DATA_PATH": str(tmp_path)}, support_device=[1], saved_data="full")
    assert plan == DumpPlan(path=tmp_path / "debug_dump", devices=frozenset({1}), saved_data="full")


def test_without_a_file_the_environment_names_it(root: Path) -> None:
    file = _write(root)
    assert load_plan(None, environ={"MINDSPORE_DUMP_CONFIG": str(file)}) == load_plan(file, environ={})
    with pytest.raises(ConfigError, match="set MINDSPORE_DUMP_CONFIG"):
        load_plan(None, environ={})


def test_a_relative_file_is_looked_for_here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(root)
    monkeypatch.chdir(root)
    assert load_plan("data_dump.json", environ={}).net_name == "Net"
    with pytest.raises(ConfigError, match=f"config file not found: 'other.json' .looked in {root}"):
        load_plan("other.json", environ={})


def test_a_file_that_cannot_be_read_says_why(root: Path) -> None:
    file = root / "data_dump.json"
    file.symlink_to("/proc/self/mem")  # opening succeeds and reading fails, for every user
    with pytest.raises(ConfigError, match=f"cannot read the config file '{file}': "):
        load_plan(file, environ={})


def test_the_dump_directory_is_made_and_left_empty(root: Path) -> None:
    plan = _plan(root, {"path": str(root / "new" / "dump")})
    assert list(plan.path.iterdir()) == []


@pytest.mark.parametrize("path", ["/proc/nope/dump", "/dev/null/dump", "/dev/null"])
def test_a_directory_that_cannot_be_written_stops_at_once(path: str, root: Path) -> None:
    with pytest.raises(DumpPathError, match=f"cannot write into the dump directory {path}: .*; set"):
        _plan(root, {"path": path})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("path", "/data/a b", r"found '/data/a b' with ' '; a dump path may contain only"),
        ("path", "dump", r"must be absolute and start with '/'; write for example"),
        ("path", "./dump", r"with '\.'; a dump path may contain only"),
        ("net_name", "my net", r'net_name: found "my net" \(a string\), expected a net_name that is not empty'),
        ("dump_mode", True, r"dump_mode: found true \(a boolean\), expected an unsigned int"),
        ("dump_mode", 1.0, r"dump_mode: found 1.0 \(a fractional number or one out of range\), expected an unsigned"),
        ("dump_mode", -1, r"dump_mode: found -1 \(a negative number\), expected an unsigned int"),
        ("dump_mode", None, r"dump_mode: found null, expected an unsigned int"),
        ("saved_data", "Full", r'saved_data only supports "tensor" or "statistic" or "full"; write "full"'),
        ("iteration", 1, r"iteration: found 1 \(a number\), expected a string"),
        ("kernels", {"a": 1}, r'kernels: found {"a": 1} \(an object\), expected an array'),
        ("overflow_number", 1, r"overflow_number has an effect only if op_debug_mode is 1 to 3, found op_debug_mode 0"),
    ],
)
def test_an_error_names_file_key_found_and_expected(key: str, value: Any, message: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _plan(root, {key: value})
    assert str(caught.value).startswith(f"{root / 'data_dump.json'}: common_dump_settings")


def test_brackets_without_end_are_refused(root: Path) -> None:
    file = root / "deep.json"
    file.write_text("[" * 200_000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"nested too deeply|not JSON"):
        load_plan(file, environ={})


def _write_async(
    root: Path, common: Mapping[str, Any] | None = None, name: str = "data_dump.json", **sections: Any
) -> Path:
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


def _plan_async(root: Path, common: Mapping[str, Any] | None = None, **sections: Any) -> DumpPlan:
    return load_plan(_write_async(root, common, **sections), environ={})


def test_the_documented_example_of_the_asynchronous_dump_resolves(root: Path) -> None:
    common = {
        "path": str(root / "absolute_path"),
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "saved_data": "tensor",
        "kernels": ["Default/Conv-op12"],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "statistic_category": ["max", "min", "l2norm"],
    }
    file = _write_async(root, common)
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
    plan = _plan_async(root, **({} if e2e is None else {"e2e_dump_settings": e2e}))
    assert (plan.layout, plan.file_format, plan.warnings) == ("mindspore-async", "npy", ())


def test_enable_makes_it_synchronous(root: Path) -> None:
    plan = _plan_async(root, e2e_dump_settings={"enable": True})
    assert plan.layout == "mindspore-2.3"
    assert "file_format belongs to the asynchronous dump and is ignored" in plan.warnings[0]


def test_enable_is_validated_even_if_it_has_no_effect(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"enable: found .*, expected a boolean"):
        _plan_async(root, e2e_dump_settings={"enable": "false"})


@pytest.mark.parametrize("value", ["txt", "NPY", "", 1, None, []])
def test_a_file_format_is_npy_or_bin(value: Any, root: Path) -> None:
    with pytest.raises(ConfigError, match=r'file_format: found .*"npy" or "bin"'):
        _plan_async(root, {"file_format": value})


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_statistics_need_npy(saved_data: str, root: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'saved_data: found .* statistics only in npy files; write "file_format": "npy"'
    ):
        _plan_async(root, {"file_format": "bin", "saved_data": saved_data})
    assert _plan_async(root, {"saved_data": saved_data}).saved_data == saved_data


def test_set_dump_belongs_to_the_synchronous_dump(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"dump_mode: found 2.*asynchronous dump, which has no set_dump"):
        _plan_async(root, {"dump_mode": 2})


def test_settings_of_the_synchronous_dump_have_no_effect_and_are_reported(root: Path) -> None:
    e2e = {"enable": False, "sample_mode": 1, "save_kernel_args": True, "stat_calc_mode": "device", "trans_flag": False}
    plan = _plan_async(root, {"saved_data": "statistic"}, e2e_dump_settings=e2e)
    assert (plan.sample_num, plan.save_kernel_args, plan.stat_calc_mode) == (None, False, "host")
    assert [warning.partition("e2e_dump_settings.")[2] for warning in plan.warnings] == [
        f"{key} belongs to the synchronous dump and has no effect in the asynchronous one"
        for key in ("save_kernel_args", "sample_mode", "stat_calc_mode")
    ]


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_overflow_mode_voids_dump_mode_and_wants_every_iteration(mode: int, root: Path) -> None:
    plan = _plan_async(root, {"op_debug_mode": mode, "dump_mode": 1, "kernels": ["Conv2D"]})
    assert (plan.captures, plan.selection, plan.kernels) == ("overflow", "all", ())
    assert any("dump_mode is taken as 0" in warning for warning in plan.warnings)
    assert _plan_async(root, {"op_debug_mode": mode, "dump_mode": 2}).selection == "all"
    with pytest.raises(ConfigError, match=r'iteration: found .*write "iteration": "all"'):
        _plan_async(root, {"op_debug_mode": mode, "iteration": "0-3"})


def test_exception_mode_dumps_nothing_else(root: Path) -> None:
    common = {
        "op_debug_mode": 4,
        "dump_mode": 1,
        "kernels": ["Conv2D"],
        "iteration": "0-3",
        "saved_data": "full",
        "file_format": "bin",
    }
    plan = _plan_async(root, common)
    assert (plan.captures, plan.selection, str(plan.steps), plan.saved_data) == ("exception", "all", "all", "tensor")
    assert len(plan.warnings) == 3


def test_dump_mode_1_selects_by_name_and_expression(root: Path) -> None:
    kernels = ["Default/fc-Dense/MatMul-op0", "name-regex(Default/.+)"]
    plan = _plan_async(root, {"dump_mode": 1, "kernels": kernels})
    assert plan.kernels == tuple(KernelPattern.parse(text) for text in kernels)


def test_opdumps_own_layout_decides(root: Path) -> None:
    plan = _plan_async(root, opdump={"layout": "mindspore-2.10"})
    assert (plan.layout, len(plan.warnings)) == ("mindspore-2.10", 2)
    plan = _plan_async(root, e2e_dump_settings={"enable": True}, opdump={"layout": "mindspore-async"})
    assert (plan.layout, plan.file_format) == ("mindspore-async", "npy")


def test_the_variable_of_acl_makes_a_level_of_steps(root: Path) -> None:
    file = _write_async(root)
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
    file = _write_async(root, opdump={"jit_level": level})
    assert load_plan(file, environ={"MS_ACL_DUMP_CFG_PATH": str(file)}).kernel_by_kernel == (level != "O2")
    assert not load_plan(file, environ={}).kernel_by_kernel
    with pytest.raises(ConfigError, match="jit_level only supports"):
        _plan_async(root, opdump={"jit_level": "O3"})


def test_two_variables_must_name_one_file(root: Path) -> None:
    file, other = _write_async(root), _write_async(root, name="other.json")
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
    file, other = str(_write_async(root)), str(_write_async(root, name="other.json"))
    assert load_any_plan(None, environ={"MS_ACL_DUMP_CFG_PATH": file}).step_level
    assert load_any_plan(None, environ={"MINDSPORE_DUMP_CONFIG": file, "MS_ACL_DUMP_CFG_PATH": "1"}).step_level
    with pytest.raises(ConfigError, match="expected the same file"):
        load_any_plan(None, environ={"MINDSPORE_DUMP_CONFIG": file, "MS_ACL_DUMP_CFG_PATH": other})
    with pytest.raises(ConfigError, match="no configuration"):
        load_any_plan(None, environ={"MS_ACL_DUMP_CFG_PATH": "1"})
