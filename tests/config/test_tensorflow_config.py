"""A `parameter_map`, key by key: its meaning, and the adapter's messages."""

from __future__ import annotations

import copy
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opdump.configs.tensorflow import (
    DUMP_KEYS,
    LARGEST_STEP,
    ParameterValue,
    TensorflowConfigError,
    TrainingDump,
    parameter_values,
    parse_dump_step,
    training_dump_of,
    training_dump_of_options,
)
from opdump.plan import ModelSelection, StepSet


def _values(**keys: Any) -> dict[str, ParameterValue]:
    return {
        key: value if isinstance(value, ParameterValue) else ParameterValue.of(value) for key, value in keys.items()
    }


def _dump(directory: Path, environ: dict[str, str] | None = None, /, **keys: Any) -> TrainingDump:
    return training_dump_of(_values(**keys), environ=environ or {}, directory=directory)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory containing a directory `d`."""
    (tmp_path / "d").mkdir()
    return tmp_path


ON: dict[str, Any] = {"enable_dump": True, "dump_path": "d"}
OVERFLOW: dict[str, Any] = {"enable_dump_debug": True, "dump_path": "d"}


def test_the_sample_of_the_document(here: Path) -> None:
    dump = _dump(here, use_off_line=True, **ON, dump_step=b"0|5|10", dump_mode=b"all")
    assert dump.plan is not None
    plan = dump.plan
    assert plan.path == (here / "d").resolve()
    assert plan.steps == StepSet.of(0, 5, 10)
    assert (plan.inputs, plan.outputs, plan.saved_data, plan.captures) == (True, True, "tensor", "data")
    assert (plan.layout, plan.dialect, plan.file_format, plan.stream_in_names) == ("acl", "tensorflow", "bin", False)
    assert plan.models is None
    assert (dump.exceptions, dump.device_id, dump.quant_dumpable, dump.warnings) == (2, 0, "", ())


@pytest.mark.parametrize("keys", [{}, {"enable_dump": False}, {"enable_dump": False, "enable_dump_debug": False}])
def test_without_a_flag_nothing_is_dumped_and_no_path_asked_for(here: Path, keys: dict[str, Any]) -> None:
    assert _dump(here, **keys).plan is None
    # settings that only a dump uses are not checked
    assert _dump(here, **keys, dump_path="nowhere", dump_step="x", dump_mode="x", dump_debug_mode="x").plan is None


@pytest.mark.parametrize(
    ("mode", "sides"),
    [("input", (True, False)), ("output", (False, True)), ("all", (True, True)), (None, (False, True))],
)
def test_a_mode_says_which_side_is_dumped(here: Path, mode: str | None, sides: tuple[bool, bool]) -> None:
    plan = _dump(here, **ON, **({} if mode is None else {"dump_mode": mode})).plan
    assert plan is not None
    assert (plan.inputs, plan.outputs) == sides
    assert plan.steps == StepSet.all()


def test_statistics_are_those_of_acl_json(here: Path) -> None:
    from opdump.configs.acl_plan import plan_from_acl_text

    plan = _dump(here, **ON, dump_data="stats").plan
    acl = plan_from_acl_text(
        f'{{"dump": {{"dump_path": "{here}", "dump_list": [{{}}], "dump_data": "stats"}}}}', environ={}
    )
    assert plan is not None
    assert (plan.saved_data, plan.statistic_category) == (acl.saved_data, acl.statistic_category)


def test_layers_are_a_set_of_names_between_white_space(here: Path) -> None:
    plan = _dump(here, **ON, dump_layer=" conv1/Conv2D\tfc\n\nconv1/Conv2D  a.b ").plan
    assert plan is not None
    assert plan.models == (ModelSelection(layers=("conv1/Conv2D", "fc", "a.b")),)
    for empty in ("", "  "):
        dump = _dump(here, **ON, dump_layer=empty)
        assert dump.plan is not None
        assert dump.plan.models is None
        assert "dump_layer names no operator, so all are dumped" in dump.warnings[0]


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("aicore_overflow", {"aicore"}),
        ("atomic_overflow", {"atomic"}),
        ("all", {"aicore", "atomic"}),
        (None, {"aicore", "atomic"}),
    ],
)
def test_overflows_are_dumped_whole(here: Path, mode: str | None, kinds: set[str]) -> None:
    plan = _dump(here, **OVERFLOW, **({} if mode is None else {"dump_debug_mode": mode})).plan
    assert plan is not None
    assert plan.captures == "overflow"
    assert set[str](plan.overflow_kinds) == kinds
    assert (plan.inputs, plan.outputs, plan.saved_data, plan.steps) == (True, True, "tensor", StepSet.all())


def test_keys_that_overflows_do_not_look_at_are_named(here: Path) -> None:
    defaults: dict[str, Any] = {"dump_mode": "output", "dump_data": "tensor", "dump_step": "", "dump_layer": ""}
    assert _dump(here, **OVERFLOW, **defaults).warnings == ()
    dump = _dump(here, **OVERFLOW, dump_mode="all", dump_data="stats", dump_step="x", dump_layer="conv")
    assert dump.warnings == (
        "NpuOptimizer: under enable_dump_debug these have no effect: dump_step, dump_mode, dump_data, dump_layer",
    )
    assert dump.plan is not None
    assert dump.plan.warnings == dump.warnings
    assert (dump.plan.saved_data, dump.plan.models) == ("tensor", None)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"enable_dump": True}, "if use dump function, dump_path must be set."),
        ({"enable_dump_debug": True}, "if use dump function, dump_path must be set."),
        ({"enable_dump": True, "dump_path": "nowhere"}, "the path nowhere is not directory."),
        ({"enable_dump": True, "dump_path": ""}, "the path  is not directory."),
        ({"enable_dump_debug": True, "dump_path": "nowhere"}, "the path nowhere is not directory."),
        ({"enable_dump": True, "dump_path": "~/dump"}, "'~' is not expanded here"),
        ({"enable_dump": True, "dump_path": "$HOME/dump"}, "'$HOME' is not expanded here"),
        ({**ON, "dump_step": "5-5"}, "in range steps, the first step is >= second step"),
        ({**ON, "dump_step": "x"}, "dump_step string style is error"),
        ({**ON, "dump_mode": "inputs"}, "dump mode should be one of the list:[input, output, all]"),
        ({**ON, "dump_mode": "All"}, "dump mode should be one of the list:[input, output, all]"),
        ({**ON, "dump_mode": ""}, "dump mode should be one of the list:[input, output, all]"),
        (
            {**OVERFLOW, "dump_debug_mode": "overflow"},
            "dump debug mode should be one of the list:[aicore_overflow, atomic_overflow, all]",
        ),
        ({**ON, "dump_data": "full"}, "dump_data should be 'tensor' or 'stats'."),
        ({"dump_data": "full"}, "dump_data should be 'tensor' or 'stats'."),
        ({"enable_exception_dump": 3}, "enable_exception_dump should be one of 0, 1 and 2."),
        ({"enable_exception_dump": -1}, "enable_exception_dump should be one of 0, 1 and 2."),
        (
            {**ON, "enable_dump_debug": True},
            "ge.exec.enableDump and ge.exec.enableDumpDebug cannot be set to 1 at the same time.",
        ),
    ],
)
def test_a_mistake_is_reported_in_the_words_of_the_adapter(here: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(TensorflowConfigError) as raised:
        _dump(here, **keys)
    assert words in str(raised.value)
    assert "NpuOptimizer: " in str(raised.value)


def test_the_first_mistake_in_the_order_of_the_adapter_is_reported(here: Path) -> None:
    wrong: dict[str, Any] = {
        "enable_dump": True,
        "enable_dump_debug": True,
        "dump_path": "nowhere",
        "dump_step": "x",
        "dump_mode": "x",
        "dump_debug_mode": "x",
        "dump_data": "x",
        "enable_exception_dump": 9,
    }
    right = {
        "dump_path": "d",
        "dump_step": "0",
        "dump_mode": "all",
        "dump_debug_mode": "all",
        "dump_data": "stats",
        "enable_exception_dump": 0,
    }
    for key, value in right.items():
        with pytest.raises(TensorflowConfigError, match=rf"NpuOptimizer: {key}: "):
            _dump(here, **wrong)
        wrong[key] = value
    with pytest.raises(TensorflowConfigError, match=r"E10001: .*enable_dump and enable_dump_debug"):
        _dump(here, **wrong)


def test_codes_of_the_graph_engine_lead_the_message_and_survive_pickling(here: Path) -> None:
    with pytest.raises(TensorflowConfigError) as missing:
        _dump(here, enable_dump=True)
    assert missing.value.code == "E10058"
    assert str(missing.value).startswith("E10058: NpuOptimizer: dump_path: ")
    for again in (pickle.loads(pickle.dumps(missing.value)), copy.copy(missing.value)):
        assert (str(again), again.code) == (str(missing.value), "E10058")


def test_the_real_path_counts_and_a_relative_one_lies_in_the_current_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "link").symlink_to(here / "d")
    monkeypatch.chdir(here)
    dump = training_dump_of(_values(enable_dump=True, dump_path="link/../link/."), environ={})
    assert dump.plan is not None
    assert dump.plan.path == (here / "d").resolve()
    (here / "file").touch()
    with pytest.raises(TensorflowConfigError, match=r"the path file is not directory\. .*name a directory"):
        training_dump_of(_values(enable_dump=True, dump_path="file"), environ={})


def test_a_path_that_cannot_be_resolved_is_invalid(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "d")
    (here / "d").rmdir()  # the current directory still exists, but no longer has a path
    with pytest.raises(TensorflowConfigError, match=r"the path \. is invalid\."):
        training_dump_of(_values(enable_dump=True, dump_path="."), environ={})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_directory_without_permissions_is_refused(here: Path) -> None:
    (here / "d").chmod(0o500)
    with pytest.raises(TensorflowConfigError, match=r"the path d does't have read, write permissions\."):
        _dump(here, **ON)


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        (
            {"enable_dump": ParameterValue("s", b"True"), "dump_path": "d"},
            'enable_dump is set as .s and read as .b, which is False; write parameter_map["enable_dump"].b = True',
        ),
        ({"enable_dump": ParameterValue(None)}, "enable_dump is set without a value and read as .b, which is False"),
        ({"enable_dump": 1}, "enable_dump is set as .i and read as .b, which is False"),
    ],
)
def test_a_flag_in_another_field_is_false_and_reported(here: Path, keys: dict[str, Any], warning: str) -> None:
    dump = _dump(here, **keys)
    assert dump.plan is None
    assert warning in dump.warnings[0]


def test_other_keys_in_another_field_are_zero_too(here: Path) -> None:
    with pytest.raises(TensorflowConfigError, match=r"the path  is not directory\."):
        _dump(here, enable_dump=True, dump_path=1)
    with pytest.raises(TensorflowConfigError, match=r"dump mode should be one of"):
        _dump(here, **ON, dump_mode=True)
    with pytest.raises(TensorflowConfigError, match=r"dump_data should be"):
        _dump(here, dump_data=1.5)
    dump = _dump(here, **ON, dump_step=5, enable_exception_dump="1", session_device_id="3")
    assert dump.plan is not None
    assert (dump.plan.steps, dump.exceptions, dump.device_id) == (StepSet.all(), 0, 0)
    assert len(dump.warnings) == 3


def test_a_missing_key_has_its_default_and_one_that_is_there_does_not(here: Path) -> None:
    assert _dump(here).exceptions == 2
    assert [_dump(here, enable_exception_dump=number).exceptions for number in (0, 1, 2)] == [0, 1, 2]
    assert _dump(here, quant_dumpable="1").quant_dumpable == "1"


def test_graphs_that_stay_on_the_host_are_not_dumped(here: Path) -> None:
    dump = _dump(here, **ON, use_off_line=False)
    assert dump.plan is None
    assert "use_off_line is False, so the graph stays on the host and nothing is dumped" in dump.warnings[0]
    assert _dump(here, use_off_line=False).warnings == ()  # nothing was requested


def test_several_iterations_in_a_run_are_said_to_be_one_step(here: Path) -> None:
    assert "iterations_per_loop is 10 and has no effect here" in _dump(here, **ON, iterations_per_loop=10).warnings[0]
    assert _dump(here, **ON, iterations_per_loop=1).warnings == ()


@pytest.mark.parametrize(
    ("keys", "environ", "device_id"),
    [
        ({}, {}, 0),
        ({}, {"DEVICE_ID": "3"}, 3),
        ({}, {"DEVICE_ID": "3", "ASCEND_DEVICE_ID": "5"}, 5),
        ({"session_device_id": 7}, {"DEVICE_ID": "3", "ASCEND_DEVICE_ID": "5"}, 7),
        ({"session_device_id": 0}, {"ASCEND_DEVICE_ID": "5"}, 0),
        ({"session_device_id": -1}, {"ASCEND_DEVICE_ID": "5"}, 5),
        ({}, {"DEVICE_ID": "3", "ASCEND_DEVICE_ID": ""}, 3),
    ],
)
def test_the_device_is_that_of_the_session_then_of_the_environment(
    here: Path, keys: dict[str, Any], environ: dict[str, str], device_id: int
) -> None:
    assert _dump(here, environ, **keys).device_id == device_id


def test_a_device_that_is_no_number_is_an_error(here: Path) -> None:
    with pytest.raises(TensorflowConfigError, match=r"ASCEND_DEVICE_ID: found 'npu0', expected a number"):
        _dump(here, {"ASCEND_DEVICE_ID": "npu0"})


def test_an_unknown_key_is_named_with_the_one_that_may_be_meant(here: Path) -> None:
    dump = _dump(here, **ON, dump_steps="0", precision_mode="x", hcom_parallel=True, something=1)
    assert dump.warnings[0] == "NpuOptimizer: unknown key 'dump_steps' is ignored; is \"dump_step\" meant?"
    assert "unknown key 'something' is ignored; a dump knows use_off_line, enable_dump, " in dump.warnings[1]
    assert len(dump.warnings) == 2
    assert dump.plan is not None
    assert dump.plan.steps == StepSet.all()


def test_bytes_that_are_no_text_name_a_directory_as_the_system_does(here: Path) -> None:
    os.mkdir(os.fsencode(here) + b"/\xff")
    dump = _dump(here, enable_dump=True, dump_path=b"\xff")
    assert dump.plan is not None
    assert os.fsencode(dump.plan.path.name) == b"\xff"


def test_a_protobuf_map_knows_which_field_was_set() -> None:
    class Message:  # an AttrValue
        def __init__(self, kind: str | None, value: Any = None) -> None:
            self.kind = kind
            if kind is not None:
                setattr(self, kind, value)

        def WhichOneof(self, name: str) -> str | None:  # noqa: N802  # protobuf's name
            assert name == "value"
            return self.kind

    found = parameter_values({"a": Message("b", True), "c": Message("list", [1]), "d": Message(None)})
    assert found == {"a": ParameterValue("b", True), "c": ParameterValue("list", [1]), "d": ParameterValue(None)}


def test_a_python_value_has_the_field_of_its_type() -> None:
    assert [ParameterValue.of(value).kind for value in (True, 1, 1.0, "a", b"a")] == ["b", "i", "f", "s", "s"]
    assert ParameterValue.of("é").value == "é".encode()
    with pytest.raises(TypeError, match="found a list, expected bool"):
        ParameterValue.of([])


def test_options_of_npu_device_are_texts(here: Path) -> None:
    options = {
        "enable_dump": "1",
        "enable_dump_debug": "0",
        "dump_path": "d",
        "dump_step": "0-2",
        "enable_exception_dump": "1",
        "quant_dumpable": "1",
        "precision_mode": "allow_mix_precision",
    }
    dump = training_dump_of_options(options, environ={"ASCEND_DEVICE_ID": "2"}, directory=here)
    assert dump.plan is not None
    assert (str(dump.plan.steps), dump.exceptions, dump.device_id, dump.quant_dumpable) == ("0-2", 1, 2, "1")
    assert dump.warnings == ()
    assert training_dump_of_options({"enable_dump": "0"}, environ={}).plan is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"enable_dump": "True"},
            r"E10001: npu_device: dump_config.enable_dump: found 'True': The value must be 1 or 0\.",
        ),
        ({"enable_dump_debug": "2"}, r"E10001: .*The value must be 1 or 0\."),
        ({"enable_dump": "1"}, r"E10058: npu_device: dump_path: if use dump function"),
        ({"enable_dump": "1", "enable_dump_debug": "1", "dump_path": "."}, r"E10001: .*at the same time"),
        ({"enable_exception_dump": "x"}, r"npu_device: enable_exception_dump: found 'x', expected a number"),
    ],
)
def test_wrong_options_of_npu_device_are_errors(options: dict[str, str], words: str) -> None:
    with pytest.raises(TensorflowConfigError, match=words):
        training_dump_of_options(options, environ={})


ANY_VALUE = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=12),
    st.sampled_from([".", "all", "input", "stats", "0|5-9", "aicore_overflow"]),
).map(ParameterValue.of)


@given(st.dictionaries(st.sampled_from([*DUMP_KEYS, "dump_stp"]), st.one_of(ANY_VALUE, st.just(ParameterValue(None)))))
def test_any_values_give_a_plan_or_the_one_error(values: dict[str, ParameterValue]) -> None:
    wrong_field = [key for key in values if key in DUMP_KEYS and values[key].kind != DUMP_KEYS[key]]
    try:
        dump = training_dump_of(values, environ={})
    except TensorflowConfigError:  # no other error may be raised
        return
    asked = {key for key in ("enable_dump", "enable_dump_debug") if values.get(key, ParameterValue(None)).value is True}
    stays = "use_off_line" in values and values["use_off_line"].value is not True
    assert (dump.plan is not None) == (len(asked) == 1 and not stays)
    assert dump.exceptions in (0, 1, 2)
    for key in ("enable_dump", "enable_dump_debug", "enable_exception_dump", "session_device_id"):
        assert any(f" {key} is set " in warning for warning in dump.warnings) == (key in wrong_field)


STYLE = "dump_step string style is error, correct example:'0|5|10|50-100'"
BACKWARDS = "in range steps, the first step is >= second step, correct example:'0|5|10-20'"
TOO_MANY = "dump_step only support dump <= 100 sets of data"


def _wanted(text: str) -> set[int] | str:
    """The steps of a text of small numbers, or the mistake in it: a second implementation of the rule."""
    if text.count("|") > 99:
        return TOO_MANY
    steps: set[int] = set()
    for item in text.split("|"):
        if not re.fullmatch(r"[0-9]+|[0-9]+-[0-9]+", item):
            return STYLE
        ends = [int(end) for end in item.split("-")]
        if len(ends) == 2 and ends[0] >= ends[1]:
            return BACKWARDS
        steps |= set(range(ends[0], ends[-1] + 1))
    return steps


ITEMS = st.one_of(
    st.integers(0, 40).map(str),
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: f"{pair[0]}-{pair[1]}"),
    st.text("0123456789-| +٣", max_size=4),
)


@given(st.lists(ITEMS, min_size=1, max_size=8).map("|".join).filter(bool))
@example("0|5|10-20")
@example("007|0-03")
@example("5|5|1-9|3-4")
@example("|")
@example("5-")
@example("-5")
@example("0|")
@example("1-2-3")
@example("|".join(["1"] * 100))
@example("|".join(["1"] * 101))
@example("|".join(["x"] * 101))
def test_the_grammar_is_that_of_the_graph_engine(text: str) -> None:
    wanted = _wanted(text)
    if isinstance(wanted, str):
        with pytest.raises(TensorflowConfigError, match=re.escape(wanted)):
            parse_dump_step(text, "here")
        return
    steps = parse_dump_step(text, "here")
    highest = max(wanted) + 2
    assert {step for step in range(highest) if step in steps} == wanted
    assert steps.last == max(wanted)


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ("a", STYLE, "the item 'a' is neither a number"),
        ("0,5", STYLE, "the item '0,5'"),
        ("0| 5", STYLE, "the item ' 5'"),
        ("0||5", STYLE, "the item ''"),
        ("0|", STYLE, "the item ''"),
        ("5-", STYLE, "the item '5-'"),
        ("-5", STYLE, "the item '-5'"),
        ("+5", STYLE, "the item '+5'"),
        ("1-2-3", STYLE, "the item '1-2-3'"),
        ("all", STYLE, "the item 'all'"),
        ("2147483648", STYLE, "beyond the largest step, 2147483647"),
        ("0-2147483648", STYLE, "beyond the largest step, 2147483647"),
        ("9" * 5000, STYLE, "... is beyond the largest step"),
        ("5-5", BACKWARDS, "write 5)"),
        ("10|9-5", BACKWARDS, "write 5-9)"),
        ("|".join(["0"] * 101), TOO_MANY, "found 101 items; merge neighbours"),
    ],
)
def test_a_wrong_text_gives_the_words_of_the_adapter_and_the_reason(text: str, words: str, reason: str) -> None:
    with pytest.raises(TensorflowConfigError) as raised:
        parse_dump_step(text, "npu_dump.json")
    message = str(raised.value)
    assert message.startswith("npu_dump.json: dump_step: found ")
    assert words in message
    assert reason in message
    assert len(message) < 400


def test_no_text_is_every_step_and_the_largest_step_is_one() -> None:
    assert parse_dump_step("", "here") == StepSet.all()
    assert LARGEST_STEP in parse_dump_step("0-2147483647", "here")
    assert LARGEST_STEP + 1 not in parse_dump_step("0-2147483647", "here")
    assert parse_dump_step("|".join(["0-9"] * 100), "here") == StepSet(((0, 9),))
