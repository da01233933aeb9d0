"""Each verb prints JSON of one documented shape, complete unless a limit is requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opdump.commands import main
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.cli.json_shapes import SHAPES, mistakes
from tests.conversion.dump_files import dump
from tests.layouts.filing import file_steps


def printed(*arguments: str | Path) -> Any:
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(step) for step in range(3)])
    return tmp_path


def test_every_verb_with_json_has_its_shape() -> None:
    with_json = set()
    for verb in main.list_commands(None):  # type: ignore[arg-type]  # the group ignores the context
        command = main.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        if any("--json" in parameter.opts for parameter in command.params):
            with_json.add(verb)
    assert with_json == {path.stem for path in SHAPES.glob("*.json")}


def test_json_is_whole_without_a_limit(several: Path) -> None:
    found = printed("show", several)
    assert mistakes("show", found) == []
    expected = sum(not op.skip for step in range(3) for op in sample_step(step).ops)
    assert len(found["operators"]) == expected > 20
    assert (found["limit"], found["more"], found["problems"]) == (None, False, [])


@pytest.mark.parametrize("limit", [1, 20, 100_000])
def test_a_limit_is_reported_and_whether_there_is_more(limit: int, several: Path) -> None:
    found = printed("show", several, "--limit", str(limit))
    assert mistakes("show", found) == []
    assert found["limit"] == limit
    assert found["more"] == (limit < 100_000)
    assert (len(found["operators"]) == limit) == found["more"]


@pytest.mark.parametrize("more", [["--op", "Cast"], ["--step", "1"], ["--skipped"], ["--run", "all"]])
def test_the_shape_is_the_same_whatever_is_asked_for(more: list[str], several: Path) -> None:
    found = printed("show", several, *more)
    assert mistakes("show", found) == []
    assert found["operators"]


def test_findings_conversions_and_overflows_have_their_shapes(several: Path, tmp_path: Path) -> None:
    assert mistakes("check", printed("check", several)) == []
    dump(tmp_path / "in")
    (tmp_path / "in" / "Bad.bad.1.2.3").write_bytes(b"")
    assert mistakes("convert", printed("convert", tmp_path / "in", "-o", tmp_path / "out")) == []
    assert mistakes("overflow", printed("overflow", tmp_path / "in")) == []


def test_an_earlier_run_is_reported_and_can_be_shown(tmp_path: Path) -> None:
    for number in range(2):
        file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(step) for step in range(2 - number)])
    told = CliRunner().invoke(main, ["show", str(tmp_path)])
    assert "2 runs wrote into this directory" in told.output
    assert "--run 1 shows an earlier one, --run all every run" in told.output
    one = CliRunner().invoke(main, ["show", str(tmp_path), "--run", "1"])
    assert "wrote into this directory" not in one.output
    assert printed("show", tmp_path)["run"] == "latest"
    assert printed("show", tmp_path, "--run", "1")["run"] == 1


def test_a_single_run_needs_no_word_of_others(several: Path) -> None:
    assert "wrote into this directory" not in CliRunner().invoke(main, ["show", str(several)]).output


def test_a_comparison_has_its_shape(several: Path, tmp_path: Path) -> None:
    found = printed("compare", several, several)
    assert mistakes("compare", found) == []
    assert found["verdict"] == "identical"
    apart = printed("compare", several, several, "--step", "0:1")
    assert mistakes("compare", apart) == []
