"""Programs that use PyTorch's features and popular packages: the same answer, bit for bit, in every mode.

One process runs the programs of a chapter of tests/parity/programs one after the other (scripts/run_programs.py), because imports take
longer than the programs. Models have random weights and are small; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.parity import peers

NAMES = [f"{path.stem}/{name}" for path in sorted(peers.CHAPTERS.glob("*.py")) for name in peers.programs_of(path.stem)]
RANKS = {"ranks": 2}
"""The number of processes, connected by gloo, in which the programs of a chapter run."""
SECONDS = 600
"""The limit for one chapter: far more than needed, for busy machines."""


@cache
def _told(chapter: str, *names: str) -> list[dict[str, Any]]:
    """The results of these programs of a chapter, by name, for each rank."""
    with TemporaryDirectory() as text:
        place = Path(text)
        with _running(chapter, names, place) as processes:
            for rank, process in enumerate(processes):
                code = process.wait(timeout=SECONDS)
                assert code == 0, (place / f"out{rank}").read_text()[-4000:]
        return [json.loads((place / f"results{rank}.json").read_text()) for rank in range(len(processes))]


@contextmanager
def _running(chapter: str, names: tuple[str, ...], place: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    assert peers.PROGRAMS.exists(), f"{peers.PROGRAMS} is missing: run tests/parity/run, which sets it up"
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ}
    fixed = {"PYTHONPATH": str(peers.ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    size = RANKS.get(chapter, 1)
    group = {"WORLD_SIZE": str(size), "PROGRAMS_STORE": str(place / "store")} if size > 1 else {}
    processes = []
    try:
        for rank in range(size):
            command: list[str | Path] = [peers.PROGRAMS, peers.SCRIPTS / "run_programs.py", chapter]
            command += [place / f"results{rank}.json", place / "dumps", *names]
            environment = {**inherited, **fixed, **group, "RANK": str(rank)}
            with (place / f"out{rank}").open("wb") as out:
                processes.append(subprocess.Popen(command, env=environment, cwd=place, stdout=out, stderr=out))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _asked(session: pytest.Session, chapter: str) -> list[str]:
    """The programs of a chapter that this test run selects: they share a process."""
    cases = [
        item.callspec.params for item in session.items if isinstance(item, pytest.Function) and _is_of_program(item)
    ]
    return sorted(str(case["name"]).partition("/")[2] for case in cases if case["chapter"] == chapter)


def _is_of_program(item: pytest.Function) -> bool:
    return item.function is test_a_program_gives_the_same_bits_in_every_mode


@pytest.mark.sampled(10, each="chapter")
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(("chapter", "name"), [(name.partition("/")[0], name) for name in NAMES], ids=NAMES)
def test_a_program_gives_the_same_bits_in_every_mode(chapter: str, name: str, request: pytest.FixtureRequest) -> None:
    for rank in _told(chapter, *_asked(request.session, chapter)):
        told = rank[name.partition("/")[2]]
        assert "failed" not in told, told["failed"]
        modes = {mode: figures for mode, figures in told.items() if isinstance(figures, dict)}
        print(f"{told['values']} values compared bit by bit in {len(modes)} modes")
        assert len(modes) == 4
        assert {mode: figures["different"] for mode, figures in modes.items()} == {mode: [] for mode in modes}
        for mode in ("data_dump.json, statistics", "acl.json, elements"):
            assert modes[mode]["captured"] > 5, modes[mode]
            assert modes[mode]["executed"] >= modes[mode]["captured"]


def test_the_collection_holds_at_least_forty_programs() -> None:
    assert len(NAMES) >= 40
