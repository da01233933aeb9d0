"""Typical TensorFlow programs return the same bits plain and under capture, in each mode, on both versions.

The programs are in `tf_real_programs/`: Keras with callbacks and metrics, mixed precision, pipelines, replicas, ragged tensors, lookups,
loops, SavedModels, checks of numerics, sessions with hooks and checkpoints.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.parity import peers

PYTHONS = {"2.21": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
FILES = {"of_keras": "function", "of_functions": "function", "of_sessions": "session"}
SOURCES = {name: (Path(__file__).parent / "tf_real_programs" / f"{name}.py").read_text("utf-8") for name in FILES}
PROGRAMS = [
    (FILES[name], each) for name in FILES for each in re.findall(r"^def ([a-z]\w*)", SOURCES[name], re.MULTILINE)
]
MODES = {"function": ("statistics", "full", "overflow"), "session": ("statistics", "full", "overflow", "streams")}


def _groups() -> list[list[tuple[str, str]]]:
    """Programs that share a process: starting TensorFlow takes seconds, and no process may take minutes."""
    of_kind = [[each for each in PROGRAMS if each[0] == kind] for kind in MODES]
    return [programs[first : first + 2] for programs in of_kind for first in range(0, len(programs), 2)]


def _group(session: pytest.Session, version: str, kind: str, name: str) -> list[str]:
    """Of the programs that this test run selects, those that share a process with the given one."""
    cases = [
        item.callspec.params for item in session.items if isinstance(item, pytest.Function) and _is_of_program(item)
    ]
    asked = {(case["kind"], case["name"]) for case in cases if case["version"] == version}
    (group,) = [each for each in _groups() if (kind, name) in each]
    return [each for _, each in group if (kind, each) in asked]


def _is_of_program(item: pytest.Function) -> bool:
    return item.function is test_a_program_answers_the_same_bits_in_each_mode


@functools.cache
def _told(version: str, kind: str, *names: str) -> tuple[dict[str, Any], ...]:
    printed = peers.run(
        PYTHONS[version],
        [peers.SCRIPTS / "run_tf_real_programs.py", kind, *names],
        {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return tuple(json.loads(line) for line in printed.splitlines() if line.startswith("{"))


def test_the_programs_are_all_there() -> None:
    assert len(PROGRAMS) >= 12


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize(("kind", "name"), PROGRAMS)
def test_a_program_answers_the_same_bits_in_each_mode(
    version: str, kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    told = _told(version, kind, *_group(request.session, version, kind, name))
    (found,) = [line for line in told if line["program"] == name]
    assert "failed" not in found, found["failed"]
    assert found["again"], "the program itself does not give the same numbers twice"
    assert [mode for mode in MODES[kind] if not found[mode]["same"]] == []
    assert found["statistics"]["tensors"] > 20
