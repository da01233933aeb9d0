"""acl.json: every rule, the documents' samples, directories, variables and overrides."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from opdump.configs.acl_keys import DUMP, INVALID_DUMP_CONFIG, LARGEST_FILE, AclConfigError
from opdump.configs.acl_plan import load_acl_plan, plan_from_acl_text, plan_from_environment
from opdump.errors import ConfigError, DumpPathError, OpdumpError
from opdump.plan import DumpPlan, KernelPattern, ModelFilter, ModelSelection, StepSet
from tests.config.verdicts import load

RESNETS = """{ "dump":{ "dump_list":[ { "model_name":"ResNet-101" }, { "model_name":"ResNet-50", "layer":[
 "conv1conv1_relu", "res2a_branch2ares2a_branch2a_relu", "res2a_branch1", "pool1" ] } ], "dump_path":"$HOME/output",
 "dump_mode":"output", "dump_op_switch":"off", "dump_data":"tensor" } }"""


@pytest.fixture
def work(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, containing a directory `dump`."""
    (root / "dump").mkdir()
    monkeypatch.chdir(root)
    return root


def _plan(dump: Mapping[str, Any], environ: Mapping[str, str] | None = None, **keywords: Any) -> DumpPlan:
    return plan_from_acl_text(json.dumps({"dump": dump}), environ=environ or {}, **keywords)


class TestTheDocumentsSamples:
    def test_a_dump_of_two_models(self, work: Path) -> None:
        (work / "output").mkdir()
        plan = plan_from_acl_text(RESNETS, environ={"HOME": str(work)})
        layers = ("conv1conv1_relu", "res2a_branch2ares2a_branch2a_relu", "res2a_branch1", "pool1")
        assert plan.models == (
            ModelSelection(model_name="ResNet-101"),
            ModelSelection(model_name="ResNet-50", layers=layers),
        )
        assert (plan.path, plan.inputs, plan.outputs, plan.saved_data) == (work / "output", False, True, "tensor")
        assert not plan.single_operators
        assert ModelFilter.of(plan.models, ("ResNet-18",)).is_empty
        assert plan.warnings == ()

    def test_a_model_of_single_operators(self, work: Path) -> None:
        plan = _plan({"dump_path": "dump", "dump_list": [], "dump_op_switch": "on", "dump_data": "tensor"})
        assert (plan.models, plan.single_operators, plan.warnings) == ((), True, ())

    def test_calls_of_single_operators(self, work: Path) -> None:
        sample = {"dump_path": "dump", "dump_list": [], "dump_data": "tensor"}
        plan = _plan(sample)
        assert (plan.models, plan.single_operators, plan.enables_nothing) == ((ModelSelection(),), True, False)
        newer = _plan(sample, dialect_version="current")
        assert (newer.models, newer.single_operators, newer.enables_nothing) == ((), False, True)
        (warning,) = newer.warnings
        assert warning.startswith("acl.json: valid, but enables nothing: ")

    def test_a_failing_operator(self, work: Path) -> None:
        plan = _plan({"dump_scene": "lite_exception"})
        assert (plan.captures, plan.path, plan.exception_detail) == ("exception", work, "brief")

    def test_operators_that_overflow(self, work: Path) -> None:
        (work / "beside the script" / "output").mkdir(parents=True)
        plan = _plan({"dump_path": "output", "dump_debug": "on"}, program_directory=work / "beside the script")
        assert plan.path == work / "beside the script" / "output"
        assert plan.captures == "overflow"

    def test_watched_operators(self, work: Path) -> None:
        plan = _plan(
            {
                "dump_list": [{"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}],
                "dump_path": str(work),
                "dump_mode": "output",
                "dump_scene": "watcher",
            }
        )
        assert plan.captures == "watch"
        assert plan.models == (ModelSelection(layers=("A", "B"), watcher_nodes=("C", "D")),)


class TestDirectories:
    def test_a_relative_path_is_resolved_against_the_program_directory_and_nowhere_else(self, work: Path) -> None:
        (work / "program").mkdir()
        config = {"dump_path": "dump", "dump_list": [{}]}
        assert _plan(config).path == work / "dump"
        with pytest.raises(AclConfigError, match=f"that is {work}/program/dump"):
            _plan(config, program_directory="program")
        assert _plan(config | {"dump_path": str(work / "dump")}, program_directory="program").path == work / "dump"

    def test_a_path_behind_an_address_lies_below_the_program(self, work: Path) -> None:
        plan = _plan({"dump_path": "127.0.0.1:/a/b", "dump_list": [{}]}, program_directory=work / "program")
        assert plan.path == work / "program" / "a" / "b"
        assert not (work / "program").exists()

    @pytest.mark.parametrize("refused", [os.R_OK, os.W_OK])
    def test_a_path_must_be_readable_and_writable(
        self, refused: int, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # tests may run as root, which file modes do not stop
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & refused)
        with pytest.raises(AclConfigError, match="read and written") as caught:
            _plan({"dump_path": "dump", "dump_list": [{}]})
        assert caught.value.code == "EP0003"

    def test_without_a_home_directory_none_is_replaced(self, work: Path) -> None:
        with pytest.raises(AclConfigError, match="HOME is not set"):
            _plan({"dump_path": "~/dump", "dump_list": [{}]})

    def test_a_link_to_a_directory_is_accepted(self, work: Path) -> None:
        (work / "link").symlink_to("dump")
        assert _plan({"dump_path": "link", "dump_list": [{}]}).path == work / "link"
        (work / "broken").symlink_to("nowhere")
        with pytest.raises(AclConfigError, match="exists"):
            _plan({"dump_path": "broken", "dump_list": [{}]})


class TestVariables:
    def test_variables_come_before_the_file_and_their_directories_are_made(self, work: Path) -> None:
        variables = {"ASCEND_DUMP_PATH": str(work / "first"), "ASCEND_WORK_PATH": str(work / "second")}
        config = {"dump_scene": "aic_err_norm_dump", "dump_path": "third"}
        for name in ("first", "second", "third", ""):
            plan = _plan(config, variables)
            assert (plan.path, plan.warnings) == (work / name, ())
            assert plan.path.is_dir()
            if name == "third":
                del config["dump_path"]
            elif variables:
                del variables[next(iter(variables))]

    def test_a_variable_that_cannot_be_used_is_reported_and_ignored(self, work: Path) -> None:
        (work / "file").touch()
        variables = {"ASCEND_DUMP_PATH": str(work / "file" / "x"), "ASCEND_WORK_PATH": str(work / "second")}
        plan = _plan({"dump_scene": "lite_exception", "dump_path": "file"}, variables)
        assert plan.path == work / "second"
        (warning,) = plan.warnings
        assert warning.startswith("ASCEND_DUMP_PATH: ")
        del variables["ASCEND_WORK_PATH"]
        plan = _plan({"dump_scene": "lite_exception", "dump_path": "file"}, variables)
        assert plan.path == work
        assert [warning.partition(":")[0] for warning in plan.warnings] == ["ASCEND_DUMP_PATH", "dump_path"]

    def test_other_dumps_ignore_them(self, work: Path) -> None:
        variables = {
            "ASCEND_DUMP_PATH": str(work / "x"),
            "ASCEND_WORK_PATH": str(work / "x"),
            "NPU_COLLECT_PATH": str(work / "x"),
            "ASCEND_DUMP_SCENE": "aic_err_norm_dump",
        }
        plan = _plan({"dump_path": "dump", "dump_list": [{}]}, variables)
        assert plan.path == work / "dump"
        assert not (work / "x").exists()
        assert [warning.split()[1] for warning in plan.warnings] == ["ASCEND_DUMP_SCENE", "NPU_COLLECT_PATH"]

    @pytest.mark.parametrize(
        ("scene", "detail"),
        [("aic_err_brief_dump", "brief"), ("aic_err_norm_dump", "norm"), ("aic_err_detail_dump", "detail")],
    )
    def test_a_scene_needs_no_file(self, scene: str, detail: str, work: Path) -> None:
        variables = {"ASCEND_DUMP_SCENE": scene, "NPU_COLLECT_PATH": "ignored"}
        plan = plan_from_environment(variables)
        assert plan is not None
        assert (plan.captures, plan.exception_detail, plan.path, plan.dialect) == ("exception", detail, work, "acl")
        plan = plan_from_environment(variables | {"ASCEND_WORK_PATH": "made"})
        assert plan is not None
        assert plan.path == work / "made"
        assert plan.path.is_dir()

    def test_npu_collect_path_alone_stands_for_the_norm_scene(self, work: Path) -> None:
        plan = plan_from_environment({"NPU_COLLECT_PATH": "there", "ASCEND_DUMP_PATH": "elsewhere"})
        assert plan is not None
        assert (plan.exception_detail, plan.path) == ("norm", work / "there")

    @pytest.mark.parametrize("variables", [{}, {"ASCEND_DUMP_SCENE": ""}, {"ASCEND_DUMP_PATH": "/tmp"}])
    def test_without_them_there_is_no_plan(self, variables: Mapping[str, str]) -> None:
        assert plan_from_environment(variables) is None

    @pytest.mark.parametrize("scene", ["lite_exception", "watcher", "AIC_ERR_NORM_DUMP"])
    def test_an_unknown_scene_causes_a_warning(self, scene: str, work: Path) -> None:
        with pytest.warns(UserWarning, match="ASCEND_DUMP_SCENE is '.*' and is ignored"):
            assert plan_from_environment({"ASCEND_DUMP_SCENE": scene}) is None
        with pytest.warns(UserWarning, match="is ignored"):
            plan = plan_from_environment({"ASCEND_DUMP_SCENE": scene, "NPU_COLLECT_PATH": "there"})
        assert plan is not None
        assert plan.path == work / "there"


class TestOverrides:
    def test_keys_replace_those_of_the_file_and_are_checked_like_them(self, work: Path) -> None:
        config = {"dump_path": "nowhere", "dump_list": [{}], "dump_data": "tensor"}
        plan = _plan(config, dump_path="dump", dump_data="stats", dump_step=StepSet.parse("0-2"), dump_mode=None)
        assert (plan.path, plan.saved_data, str(plan.steps), plan.inputs) == (work / "dump", "statistic", "0-2", False)
        with pytest.raises(AclConfigError) as caught:
            _plan(config, dump_path="dump", dump_mode="both")
        assert caught.value.code == "EP0002"

    def test_keys_make_a_dump_out_of_an_empty_file(self, work: Path) -> None:
        plan = plan_from_acl_text(b"", environ={}, dump_path="dump", dump_op_switch="on")
        assert (plan.path, plan.single_operators, plan.enables_nothing) == (work / "dump", True, False)

    def test_a_path_may_be_any_directory_and_is_made(self, work: Path) -> None:
        plan = _plan({"dump_list": [{}]}, path=work / "a dir" / "x")
        assert plan.path == work / "a dir" / "x"
        assert plan.path.is_dir()
        assert _plan({"dump_scene": "lite_exception"}, {"ASCEND_DUMP_PATH": "no"}, path="y").path == work / "y"
        (work / "file").touch()
        with pytest.raises(DumpPathError, match="cannot write"):
            _plan({"dump_list": [{}]}, path=work / "file")

    def test_fields_of_the_plan_replace_what_the_file_gave(self, work: Path) -> None:
        chosen = (ModelSelection(model_name="m"),)
        plan = _plan(
            {"dump_path": "dump"},
            models=chosen,
            inputs=True,
            steps="3-5",
            kernels=["Conv2D"],
            layout="mindspore-2.3",
            file_format="npy",
        )
        assert (plan.models, plan.inputs, str(plan.steps), plan.selection) == (chosen, True, "3-5", "kernels")
        assert plan.kernels == (KernelPattern.parse("Conv2D"),)
        assert (plan.layout, plan.file_format, plan.enables_nothing, plan.warnings) == (
            "mindspore-2.3",
            "npy",
            False,
            (),
        )

    @pytest.mark.parametrize("keyword", ["dump_pth", "warnings", "config_text", "dialect", "nothing_like_it"])
    def test_any_other_is_an_error(self, keyword: str, work: Path) -> None:
        with pytest.raises(ConfigError, match=f"unknown setting {keyword}="):
            _plan({"dump_path": "dump", "dump_list": [{}]}, {}, **{keyword: "x"})

    def test_a_dialect_version_is_one_of_two(self) -> None:
        with pytest.raises(ConfigError, match='dialect_version is \'old\', expected "seed" or "current"'):
            plan_from_acl_text("{}", environ={}, dialect_version="old")  # type: ignore[arg-type]  # what a program may pass


def test_an_error_keeps_its_codes_through_pickle() -> None:
    error = AclConfigError("acl.json: dump: found", "EP0001")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.error_code) == ("EP0001 (100009): acl.json: dump: found", "EP0001", 100009)
    assert isinstance(copy, AclConfigError)


def test_a_file_and_its_text_give_the_same_plan(work: Path) -> None:
    text = '\ufeff{"dump": {"dump_path": "dump", "dump_list": [{}]}}'
    (work / "acl.json").write_text(text, encoding="utf-8")
    plan = load_acl_plan("acl.json", environ={})
    assert plan == plan_from_acl_text(text, environ={}) == plan_from_acl_text(text.encode(), environ={})
    assert plan.config_text == text[1:]


_WORDS = st.sampled_from(
    ["on", "off", "all", "output", "op", "stats", "Max", "dump", "watcher", "lite_exception", "0|3-5", "1.2.3.4:", "~"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | _WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["name", "pos", "layer"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_ENTRIES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "model_name": _WORDS,
            "layer": st.lists(_WORDS),
            "watcher_nodes": st.lists(_WORDS),
            "opname_range": st.lists(st.fixed_dictionaries({}, optional={"begin": _WORDS, "end": _WORDS})),
            "optype_blacklist": st.lists(
                st.fixed_dictionaries({}, optional={"name": _WORDS, "pos": st.lists(st.just("input0") | _WORDS)})
            ),
        },
    ),
    max_size=3,
)
# excludes "/" and "..", so that no directories are created elsewhere
_DUMPS = st.dictionaries(
    st.sampled_from([key for key in DUMP.keys if key != "dump_path"]) | st.text(max_size=5), _VALUES | _WORDS | _ENTRIES
).flatmap(lambda keys: st.sampled_from([{}, {"dump_path": "dump"}, {"dump_path": "\0"}]).map(lambda path: keys | path))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    config=st.dictionaries(st.just("dump"), _DUMPS | _VALUES) | _VALUES, version=st.sampled_from(["seed", "current"])
)
@example(config={"dump": {"dump_path": "dump", "dump_list": [{}], "dump_step": "٣"}}, version="seed")
@example(config={"dump": {"dump_scene": "lite_exception", "dump_path": "\0"}}, version="seed")
@example(config={"dump": {"dump_scene": "lite_exception", "dump_path": "x" * 300}}, version="seed")
def test_any_json_gives_a_plan_or_an_error_of_ours(config: Any, version: Any, work: Path) -> None:
    result = _plan_or_error(json.dumps(config), dialect_version=version)
    if isinstance(result, DumpPlan):
        assert (result.dialect, json.loads(result.to_json())["layout"]) == ("acl", "acl")
    else:
        assert isinstance(result, AclConfigError)
        assert result.error_code in (100006, 100009)


@given(data=st.binary(max_size=60) | st.text(alphabet='{}[]":,dump 0\\', max_size=60).map(str.encode))
def test_any_bytes_give_a_plan_or_an_error_of_ours(data: bytes) -> None:
    result = _plan_or_error(data)
    assert result.enables_nothing if isinstance(result, DumpPlan) else isinstance(result, AclConfigError)


def _plan_or_error(text: str | bytes, **keywords: Any) -> DumpPlan | OpdumpError:
    try:
        return plan_from_acl_text(text, environ={}, **keywords)
    except OpdumpError as error:
        return error


@pytest.mark.parametrize(
    ("dump", "unused"),
    [
        ({"dump_debug": "on", "dump_level": "op"}, "dump_level"),
        ({"dump_debug": "on", "dump_level": "kernel", "dump_step": "1"}, "dump_level, dump.dump_step"),
        ({"dump_scene": "watcher", "dump_level": "kernel", "dump_list": [{"watcher_nodes": ["C"]}]}, "dump_level"),
        (
            {
                "dump_scene": "watcher",
                "dump_level": "op",
                "dump_list": [
                    {"watcher_nodes": ["C"], "optype_blacklist": [{"name": "Conv", "pos": ["output0"]}]},
                ],
            },
            "dump_level, dump.dump_list[].optype_blacklist",
        ),
        ({"dump_scene": "lite_exception", "dump_level": "op"}, "dump_level"),
    ],
)
def test_a_key_without_effect_in_its_mode_is_named(dump: dict[str, Any], unused: str, work: Path) -> None:
    plan = _plan({"dump_path": "dump", **dump})
    assert any(f"these have no effect: dump.{unused}" in warning for warning in plan.warnings), plan.warnings


VECTORS = load("acl_vectors.json")
# A plan omits these if they have their default.
DEFAULTS = MappingProxyType(
    {"captures": "data", "exception_detail": "brief", "models": None, "single_operators": True, "dump_level": "kernel"}
)


def _name(vector: Mapping[str, Any]) -> str:
    return f"{vector['rule']} {vector['text'][:60]}"


@pytest.fixture
def place(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a dump directory, a file, a home directory, and a directory with an unusual name."""
    for name in ("dump", "home/output", "odd-=[];,!@#%^&()_+{}:?"):
        (root / name).mkdir(parents=True)
    (root / "file").touch()
    monkeypatch.chdir(root)
    return root


def _load(vector: Mapping[str, Any], root: Path, *, strict: bool = False) -> DumpPlan:
    file = root / "acl.json"
    file.write_text(vector["text"], encoding="utf-8")
    environ = {"HOME": str(root / "home")}
    return load_acl_plan(file, environ=environ, dialect_version=vector.get("version", "seed"), strict=strict)


@pytest.mark.parametrize("vector", [each for each in VECTORS if "code" in each], ids=_name)
def test_a_broken_rule_gives_its_code(vector: Mapping[str, Any], place: Path) -> None:
    with pytest.raises(AclConfigError) as caught:
        _load(vector, place)
    assert (caught.value.code, caught.value.error_code) == (
        vector["code"],
        vector.get("error_code", INVALID_DUMP_CONFIG),
    )
    message = str(caught.value)
    assert message.startswith(f"{vector['code']} (100009): " if vector["code"] else f"{caught.value.error_code}: ")
    assert str(place / "acl.json") in message
    assert vector.get("says", "") in message


@pytest.mark.parametrize("vector", [each for each in VECTORS if "code" not in each], ids=_name)
def test_a_kept_rule_gives_its_plan(vector: Mapping[str, Any], place: Path) -> None:
    plan = _load(vector, place)
    facts = dict(vector.get("plan", {}))
    if "path" in facts:
        assert plan.path == place / facts.pop("path")
    if "enables_nothing" in facts:
        assert plan.enables_nothing is facts.pop("enables_nothing")
    shown = {**DEFAULTS, **json.loads(plan.to_json())}
    assert {name: shown[name] for name in facts} == facts
    assert plan.config_text == vector["text"]
    assert plan.enables_nothing == any("valid, but enables nothing: " in warning for warning in plan.warnings)
    if vector.get("warns", "") is None:
        assert plan.warnings == ()
    else:
        assert vector.get("warns", "") in "\n".join(plan.warnings)


@pytest.mark.parametrize("vector", [each for each in VECTORS if "strict" in each], ids=_name)
def test_strict_makes_an_unknown_key_an_error(vector: Mapping[str, Any], place: Path) -> None:
    with pytest.raises(AclConfigError, match=vector["strict"]) as caught:
        _load(vector, place, strict=True)
    assert caught.value.error_code == INVALID_DUMP_CONFIG


@pytest.mark.parametrize(
    "vector", [each for each in VECTORS if each.get("warns", "") is None], ids=lambda each: str(each["rule"])
)
def test_strict_has_nothing_against_known_keys(vector: Mapping[str, Any], place: Path) -> None:
    assert _load(vector, place, strict=True) == _load(vector, place)


class TestHostileFiles:
    def test_ten_mebibytes_may_be_and_one_byte_more_not(self, place: Path) -> None:
        text = json.dumps({"dump": {"dump_path": "dump", "dump_list": [{}]}})
        file = place / "acl.json"
        file.write_text(text.ljust(LARGEST_FILE), encoding="utf-8")
        assert load_acl_plan(file, environ={}).captures == "data"
        file.write_text(text.ljust(LARGEST_FILE + 1), encoding="utf-8")
        with pytest.raises(AclConfigError, match="10 MiB") as caught:
            load_acl_plan(file, environ={})
        assert (caught.value.code, caught.value.error_code) == (None, 100003)

    def test_the_size_comes_before_the_depth(self, place: Path) -> None:
        (place / "acl.json").write_bytes(b"[" * (LARGEST_FILE + 1))
        with pytest.raises(AclConfigError) as caught:
            load_acl_plan(place / "acl.json", environ={})
        assert caught.value.error_code == 100003

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("absent.json", "No such file"),
            ("dump", "is a directory"),
            ("pipe", "device, pipe or socket"),
            ("", "No such file"),
            ("a\0b", "embedded null"),
            ("x" * 300, "name too long"),
        ],
    )
    def test_what_is_no_regular_file_is_100003(self, name: str, message: str, place: Path) -> None:
        os.mkfifo(place / "pipe")
        with pytest.raises(AclConfigError, match=message) as caught:
            load_acl_plan(name, environ={})
        assert (caught.value.code, caught.value.error_code) == (None, 100003)

    @pytest.mark.parametrize("data", [b"\xff\xfe{", b'{"dump": "\xe9"}', b"\x00", b"\x00" * 9, b"PK\x03\x04"])
    def test_bytes_that_are_no_text_are_ep0004(self, data: bytes, place: Path) -> None:
        (place / "acl.json").write_bytes(data)
        with pytest.raises(AclConfigError) as caught:
            load_acl_plan(place / "acl.json", environ={})
        assert (caught.value.code, caught.value.error_code) == ("EP0004", 100009)

    def test_a_link_to_a_file_and_any_name_is_accepted(self, place: Path) -> None:
        (place / "real.txt").write_text('{"dump": {"dump_path": "dump", "dump_list": [{}]}}', encoding="utf-8")
        (place / "acl").symlink_to("real.txt")
        assert load_acl_plan("acl", environ={}).path == place / "dump"

    def test_brackets_hidden_from_the_count_are_survived(self) -> None:
        for depth in range(800, 1010):  # around the depth that the interpreter can parse
            text = '{"dump": {"dump_list": [' + '["]", ' * depth + "1" + "]" * depth + "]}}"
            with pytest.raises(AclConfigError) as caught:
                plan_from_acl_text(text, environ={})
            assert caught.value.code in ("EP0001", "EP0004"), depth

    def test_many_unknown_keys_are_summarised(self, place: Path) -> None:
        keys = {f"key{number}": 0 for number in range(100_000)}
        text = json.dumps({"dump": {"dump_path": "dump", "dump_list": [{}], "x" * 1000: 0, **keys}})
        plan = plan_from_acl_text(text[:-2] + ', "key1": 0}}', environ={})
        assert len(plan.warnings) == 22
        assert plan.warnings[0] == "acl.json: keys given more than once, of which the last one is used: key1"
        assert plan.warnings[-1] == "acl.json: 99981 more unknown keys are ignored"
        assert max(map(len, plan.warnings)) < 300
