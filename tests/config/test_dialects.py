"""The keys of a config file identify its dialect."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from opdump.configs.acl_keys import AclConfigError
from opdump.configs.dialects import dialect_of, load_plan
from opdump.errors import ConfigError

MINDSPORE = {
    "dump_mode": 0,
    "net_name": "Net",
    "iteration": "all",
    "input_output": 0,
    "kernels": [],
    "support_device": [0],
}


@pytest.fixture(autouse=True)
def _work_in_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "dump").mkdir()


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ('{"dump": {}}', "acl"),
        ('{"dump": null, "profiler": {}}', "acl"),
        ('{"common_dump_settings": {}}', "mindspore"),
        ('{"e2e_dump_settings": {}}', "mindspore"),
        ('{"common_dump_settings": {"dump": 1}}', "mindspore"),
        ('{"enable_dump": true}', "tensorflow"),
        ('{"enable_dump_debug": false, "profiler": {}}', "tensorflow"),
        ('{"dump_path": "/tmp/dump"}', "tensorflow"),
        ('{"dump": {"dump_path": "/tmp/dump"}}', "acl"),
        # invalid JSON: the loader of the likely dialect reports why
        ('{"dump": {}', "acl"),
        ('{"common_dump_settings": {"net_name": "dump"', "mindspore"),
        ('{"enable_dump": True}', "tensorflow"),
        ("{", "mindspore"),
        ("\0", "mindspore"),
    ],
)
def test_the_keys_decide_the_dialect(text: str, dialect: str) -> None:
    Path("config.json").write_text(text, encoding="utf-8")
    assert dialect_of("config.json") == dialect


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"dump": {}, "common_dump_settings": {}}', 'found "dump" and "common_dump_settings" together'),
        ('{"dump": {}, "dump_path": "x"}', 'found "dump" and "dump_path" together'),
        ("{}", "found no key of a known dialect"),
        ('{"profiler": {}}', "found no key of a known dialect"),
        ("[]", "found no key of a known dialect"),
        ("", "the file is empty"),
    ],
)
def test_several_or_none_is_an_error_that_names_all(text: str, found: str) -> None:
    Path("config.json").write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=rf'config.json: {found}.* "dump" .*"common_dump_settings".*"enable_dump".*--dialect acl'
    ):
        load_plan("config.json", environ={})


def test_each_dialect_is_loaded_with_what_is_its_own(root: Path) -> None:
    (root / "program" / "dump").mkdir(parents=True)
    Path("acl.json").write_text('{"dump": {"dump_path": "dump", "dump_list": []}}', encoding="utf-8")
    plan = load_plan("acl.json", environ={}, program_directory=root / "program", dump_data="stats")
    assert (plan.dialect, plan.path, plan.saved_data) == ("acl", root / "program" / "dump", "statistic")
    assert load_plan("acl.json", environ={}, dialect_version="current").enables_nothing
    Path("data_dump.json").write_text(
        json.dumps({"common_dump_settings": MINDSPORE | {"path": str(root / "made")}, "e2e_dump_settings": {}}),
        encoding="utf-8",
    )
    plan = load_plan("data_dump.json", environ={}, program_directory="ignored", saved_data="statistic")
    assert (plan.dialect, plan.path, plan.saved_data) == ("mindspore", root / "made", "statistic")
    assert load_plan(None, environ={"MINDSPORE_DUMP_CONFIG": "data_dump.json"}).dialect == "mindspore"
    assert load_plan(None, environ={"MINDSPORE_DUMP_CONFIG": "acl.json"}).dialect == "acl"


def test_strict_reaches_the_dialects_loader() -> None:
    Path("acl.json").write_text('{"dump": {"dump_path": "dump", "dump_list": [{}], "x": 1}}', encoding="utf-8")
    assert len(load_plan("acl.json", environ={}).warnings) == 1
    with pytest.raises(AclConfigError, match="an error under strict"):
        load_plan("acl.json", environ={}, strict=True)


def test_an_argument_counts_before_what_is_found() -> None:
    Path("acl.json").write_text('{"common_dump_settings": {}}', encoding="utf-8")
    plan = load_plan("acl.json", environ={}, dialect="acl")
    assert plan.enables_nothing
    assert "if this is one, use --dialect mindspore" in plan.warnings[-1]
    Path("data_dump.json").write_text('{"dump": {}}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r'found "dump": is this an acl\.json\?'):
        load_plan("data_dump.json", environ={}, dialect="mindspore")
    assert "unknown key 'common_dump_settings'" in load_plan("acl.json", environ={}, dialect="tensorflow").warnings[-1]
    with pytest.raises(ConfigError, match="dialect is 'onnx'"):
        load_plan("acl.json", environ={}, dialect="onnx")


def test_without_a_file_the_messages_name_one() -> None:
    with pytest.raises(ConfigError, match=r"name a data_dump\.json"):
        load_plan(None, environ={})
    with pytest.raises(ConfigError, match=r"name an acl\.json; `opdump config new --dialect acl`"):
        load_plan(None, environ={}, dialect="acl")
    with pytest.raises(ConfigError, match="config file not found"):
        load_plan("absent.json", environ={})
    with pytest.raises(AclConfigError, match=r"100003: cannot read the config file 'absent.json'"):
        load_plan("absent.json", environ={}, dialect="acl")


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe.json")
    assert dialect_of("pipe.json") == "mindspore"
