"""`opdump config check` and `opdump config new` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
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
    assert "mine.json exists already; name another file, or replace it with --force" in refused.stderr
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


def test_a_new_acl_json_passes_the_check(root: Path) -> None:
    made = _opdump("new", "--dialect", "acl")
    assert (made.exit_code, made.output) == (0, "wrote acl.json; next: opdump config check acl.json\n")
    checked = _opdump("check", "acl.json", "--strict")
    assert (checked.exit_code, checked.stderr) == (0, "")
    plan = json.loads(checked.stdout)
    assert (plan["dialect"], plan["path"], plan["models"][0]["layers"]) == ("acl", str(root / "dump"), None)
    assert _opdump("new", "--dialect", "acl").exit_code == 1
    assert _opdump("new", "other.json", "--dialect", "acl", "--path", str(root / "elsewhere")).exit_code == 0
    assert (root / "elsewhere").is_dir()
    refused = _opdump("new", "third.json", "--dialect", "acl", "--path", str(root / "a b"))
    assert refused.exit_code == 1
    assert "with ' '; a dump path may contain only ASCII letters" in refused.stderr
    assert not (root / "third.json").exists()


def test_a_broken_acl_json_shows_code_and_reason(root: Path) -> None:
    (root / "acl.json").write_text('{"dump": {"dump_path": "nowhere", "dump_list": [{}]}}', encoding="utf-8")
    result = _opdump("check", "acl.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"opdump: error: EP0003 (100009): acl.json: dump.dump_path: found 'nowhere' (that is {root}/nowhere), expected a "
        f"directory that exists (No such file or directory); create it: mkdir -p '{root}/nowhere'\n"
    )


def test_what_enables_nothing_is_reported_loudly_and_depends_on_the_version(root: Path) -> None:
    (root / "dump").mkdir()
    (root / "acl.json").write_text('{"dump": {"dump_path": "dump", "dump_list": []}}', encoding="utf-8")
    dumps = _opdump("check", "acl.json")
    assert (dumps.exit_code, dumps.stderr) == (0, "")
    newer = _opdump("check", "acl.json", "--dialect-version", "current")
    assert newer.exit_code == 0
    assert newer.stderr.startswith("opdump: warning: acl.json: valid, but enables nothing: ")


def test_the_dialect_is_that_of_the_file_or_of_the_argument(root: Path) -> None:
    (root / "none.json").write_text("{}", encoding="utf-8")
    undecided = _opdump("check", "none.json")
    assert undecided.exit_code == 1
    assert 'expected one of "dump" (an acl.json), "common_dump_settings" (a data_dump.json) and' in undecided.stderr
    assert "--dialect acl, mindspore or tensorflow" in undecided.stderr
    said = _opdump("check", "none.json", "--dialect", "acl")
    assert (said.exit_code, json.loads(said.stdout)["dialect"]) == (0, "acl")
    assert "common_dump_settings not found" in _opdump("check", "none.json", "--dialect", "mindspore").stderr
    said = _opdump("check", "none.json", "--dialect", "tensorflow")
    assert (said.exit_code, json.loads(said.stdout)["dialect"]) == (0, "tensorflow")
    assert _opdump("check", "none.json", "--dialect", "onnx").exit_code == 2


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of `opdump`, as the words after `opdump`."""
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _commands(found, (*path, name))


@pytest.mark.parametrize("words", list(_commands(main)), ids=" ".join)
def test_help_shows_an_example(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*words, "--help"])
    assert " ".join(["opdump", *words]) in shown.stdout.partition("Examples:")[2]
