"""`opdump config check` and `opdump config new`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opdump.commands import main


def _opdump(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], env=environ)


@pytest.fixture(autouse=True)
def _work_in_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


def test_a_new_file_passes_the_check(root: Path) -> None:
    made = _opdump("new")
    assert (made.exit_code, made.output) == (0, "wrote data_dump.json; next: opdump run -c data_dump.json train.py\n")
    checked = _opdump("check", "data_dump.json", "--strict")
    assert checked.exit_code == 0, checked.output
    assert checked.stderr == ""
    plan = json.loads(checked.stdout)
    assert plan["path"] == str(root / "dump")
    assert plan["steps"] == "0"
    assert plan["saved_data"] == "full"


def test_a_file_that_is_there_is_kept_unless_forced(root: Path) -> None:
    file = root / "mine.json"
    file.write_text("mine", encoding="utf-8")
    refused = _opdump("new", "mine.json")
    assert refused.exit_code == 1
    assert "mine.json is there already; name another file, or replace it with --force" in refused.stderr
    assert file.read_text(encoding="utf-8") == "mine"
    assert _opdump("new", "mine.json", "--force", "--path", "/tmp/lenet").exit_code == 0
    assert json.loads(file.read_text(encoding="utf-8"))["common_dump_settings"]["path"] == "/tmp/lenet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "dump.cfg"), "must end in .json, write dump.cfg.json"),
        (("new", "--path", "/tmp/a.b"), "found the dump path '/tmp/a.b'"),
        (("new", "nowhere/data_dump.json"), "cannot write nowhere/data_dump.json: No such file"),
        (("check", "absent.json"), "config file not found: 'absent.json'"),
        (("check",), "no configuration: name a data_dump.json"),
    ],
)
def test_a_mistake_ends_with_a_message_and_exit_code_1(arguments: tuple[str, ...], message: str) -> None:
    result = _opdump(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr


def test_an_outlandish_working_directory_is_not_suggested(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = root / "v1.2 beta"
    odd.mkdir()
    monkeypatch.chdir(odd)
    assert _opdump("new").exit_code == 0
    assert json.loads(Path("data_dump.json").read_text(encoding="utf-8"))["common_dump_settings"]["path"] == "/tmp/dump"


def test_warnings_go_to_standard_error_and_strict_makes_them_errors(root: Path) -> None:
    _opdump("new")
    file = root / "data_dump.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"trans_flag"', '"transflag"'), encoding="utf-8")
    lax = _opdump("check", environ={"MINDSPORE_DUMP_CONFIG": str(file)})
    assert lax.exit_code == 0
    assert json.loads(lax.stdout)["trans_flag"] is True
    assert "opdump: warning: " in lax.stderr
    assert 'the nearest known key is "trans_flag"' in lax.stderr
    strict = _opdump("check", str(file), "--strict")
    assert strict.exit_code == 1
    assert strict.stdout == ""
    assert "unknown key 'transflag' is an error under strict" in strict.stderr


@pytest.mark.parametrize("verb", ["check", "new"])
def test_help_shows_an_example(verb: str) -> None:
    assert f"opdump config {verb}" in _opdump(verb, "--help").stdout.partition("Examples:")[2]
