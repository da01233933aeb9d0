"""npu_dump.json: the keys of a `parameter_map` in a file, and the commands that read and write one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opdump.commands import main
from opdump.configs.dialects import load_plan
from opdump.configs.tensorflow import TensorflowConfigError, load_tensorflow_plan
from opdump.errors import ConfigError
from opdump.plan import StepSet


@pytest.fixture(autouse=True)
def _work_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").mkdir()


def _write(**keys: Any) -> str:
    Path("npu_dump.json").write_text(json.dumps(keys), encoding="utf-8")
    return "npu_dump.json"


def _opdump(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments])


def test_a_new_file_passes_the_check(tmp_path: Path) -> None:
    (tmp_path / "dump").rmdir()
    made = _opdump("new", "--dialect", "tensorflow")
    assert (made.exit_code, made.output) == (0, "wrote npu_dump.json; next: opdump config check npu_dump.json\n")
    checked = _opdump("check", "npu_dump.json", "--strict")
    assert (checked.exit_code, checked.stderr) == (0, "")
    plan = json.loads(checked.stdout)
    assert (plan["dialect"], plan["steps"], plan["inputs"]) == ("tensorflow", "0", True)
    assert plan["path"] == str((tmp_path / "dump").resolve())
    assert _opdump("new", "--dialect", "tensorflow", "--path", "other/d", "--force").exit_code == 0
    assert (tmp_path / "other" / "d").is_dir()


def test_the_dialect_follows_from_the_file_and_overrides_apply(tmp_path: Path) -> None:
    file = _write(enable_dump=True, dump_path="dump", dump_mode="input")
    plan = load_plan(file, environ={})
    assert (plan.dialect, plan.path, plan.inputs, plan.outputs) == (
        "tensorflow",
        (tmp_path / "dump").resolve(),
        True,
        False,
    )
    assert json.loads(plan.config_text)["dump_mode"] == "input"
    plan = load_plan(
        file, environ={}, dump_step="3", dump_data="stats", outputs=True, path=tmp_path / "made", steps=None
    )
    assert (plan.steps, plan.saved_data, plan.outputs, plan.path) == (
        StepSet.of(3),
        "statistic",
        True,
        tmp_path / "made",
    )
    assert (tmp_path / "made").is_dir()
    assert load_plan(file, environ={}, steps="1|2").steps == StepSet.of(1, 2)
    assert load_plan(file, environ={}, kernels=["MatMul"]).selection == "kernels"
    with pytest.raises(ConfigError, match=r"unknown setting dump_steps='0'; is dump_step meant\?"):
        load_plan(file, environ={}, dump_steps="0")
    with pytest.raises(ConfigError, match=r"unknown setting qqq=1; known are use_off_line"):
        load_plan(file, environ={}, qqq=1)


def test_a_relative_path_is_resolved_against_the_current_directory_as_in_a_program(tmp_path: Path) -> None:
    for directory in (tmp_path / "program" / "dump", tmp_path / "dump"):
        directory.mkdir(parents=True, exist_ok=True)
    plan = load_plan(_write(enable_dump=True, dump_path="dump"), environ={}, program_directory="program")
    assert plan.path == (tmp_path / "dump").resolve()
    checked = _opdump("check", _write(enable_dump=True, dump_path="dump"))
    assert json.loads(checked.stdout)["path"] == str((tmp_path / "dump").resolve())


def test_a_file_that_enables_nothing_is_valid_and_reported() -> None:
    checked = _opdump("check", _write(enable_dump=False))
    assert checked.exit_code == 0
    assert checked.stderr == (
        'opdump: warning: npu_dump.json: valid, but enables nothing; write "enable_dump": true, or '
        '"enable_dump_debug": true\n'
    )
    assert load_plan("npu_dump.json", environ={}).enables_nothing


def test_an_unknown_key_is_a_warning_and_with_strict_an_error() -> None:
    file = _write(enable_dump=True, dump_path="dump", dump_layers="conv", fusion_switch_file={"any": "thing"})
    checked = _opdump("check", file)
    assert checked.exit_code == 0
    assert "unknown key 'dump_layers' is ignored; is \"dump_layer\" meant?" in checked.stderr
    strict = _opdump("check", file, "--strict")
    assert strict.exit_code == 1
    assert "unknown key 'dump_layers' is an error under strict" in strict.stderr


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"enable_dump": "true"}, 'enable_dump: found "true" (a string), expected true or false'),
        ({"enable_dump": 1}, "enable_dump: found 1 (a number), expected true or false"),
        ({"enable_dump": None}, "enable_dump: found null, expected true or false"),
        ({"enable_dump": True, "dump_path": 1}, "dump_path: found 1 (a number), expected a string"),
        ({"dump_step": 5}, "dump_step: found 5 (a number), expected a string"),
        ({"enable_exception_dump": True}, "enable_exception_dump: found true (a boolean), expected a whole number"),
        ({"enable_dump": True}, "E10058: npu_dump.json: dump_path: if use dump function, dump_path must be set."),
        ({"enable_dump": True, "enable_dump_debug": True, "dump_path": "dump"}, "cannot be set to 1 at the same time."),
        (
            {"enable_dump": True, "dump_path": "dump", "dump_mode": "x"},
            "npu_dump.json: dump_mode: found 'x': dump mode",
        ),
    ],
)
def test_a_mistake_names_the_file_and_the_key(keys: dict[str, Any], message: str) -> None:
    result = _opdump("check", _write(**keys), "--dialect", "tensorflow")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"found \[\] \(an array\), expected an object such as"),
        ('{"enable_dump": true', r"npu_dump.json, line 1, column .*not JSON"),
        ('{"enable_dump": false} x', r"text after the end of the JSON: 'x'"),
        ("", r"the file is empty"),
    ],
)
def test_what_is_no_object_is_an_error(text: str, message: str) -> None:
    Path("npu_dump.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_tensorflow_plan("npu_dump.json", environ={})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(TensorflowConfigError, match=r"'pipe.json': it is not a regular file"):
        load_tensorflow_plan("pipe.json", environ={})
    with pytest.raises(TensorflowConfigError, match=r"'absent.json': there is none .*config new --dialect tensorflow"):
        load_plan("absent.json", environ={}, dialect="tensorflow")
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(10 * 1024 * 1024 + 1)
    with pytest.raises(TensorflowConfigError, match=r"found more than 10485760 bytes"):
        load_tensorflow_plan("large.json", environ={})
    with pytest.raises(ConfigError, match=r"name an npu_dump\.json; `opdump config new --dialect tensorflow`"):
        load_plan(None, environ={}, dialect="tensorflow")
