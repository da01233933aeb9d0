"""Programs written against PyTorch's own features and the packages that people use: the same answer, bit for bit, in every mode.

One process runs the programs of a folder of tests/parity/programs one after the other (scripts/run_programs.py), for imports take
longer than programs. Models have random weights and are small; nothing is downloaded.
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

FOLDER = Path(__file__).parent / "programs"
FOLDERS = sorted(path.name for path in FOLDER.iterdir() if any(path.glob("*.py")))
NAMES = [f"{folder}/{path.stem}" for folder in FOLDERS for path in sorted((FOLDER / folder).glob("*.py"))]
RANKS = {"ranks": 2}
"""Programs of these folders run in so many processes at once, over gloo."""
SECONDS = 600
"""For one folder; far more than it takes, for machines under load."""


@cache
def _told(folder: str) -> list[dict[str, Any]]:
    """What became of the programs of a folder, by their names, for each rank."""
    with TemporaryDirectory() as text:
        place = Path(text)
        with _running(folder, place) as processes:
            for rank, process in enumerate(processes):
                code = process.wait(timeout=SECONDS)
                assert code == 0, (place / f"out{rank}").read_text()[-4000:]
        return [json.loads((place / f"results{rank}.json").read_text()) for rank in range(len(processes))]


@contextmanager
def _running(folder: str, place: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    assert peers.PROGRAMS.exists(), f"{peers.PROGRAMS} is missing: run tests/parity/run, which sets it up"
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ}
    fixed = {"PYTHONPATH": str(peers.ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    size = RANKS.get(folder, 1)
    group = {"WORLD_SIZE": str(size), "PROGRAMS_STORE": str(place / "store")} if size > 1 else {}
    processes = []
    try:
        for rank in range(size):
            command: list[str | Path] = [peers.PROGRAMS, peers.SCRIPTS / "run_programs.py", folder]
            command += [place / f"results{rank}.json", place / "dumps"]
            environment = {**inherited, **fixed, **group, "RANK": str(rank)}
            with (place / f"out{rank}").open("wb") as out:
                processes.append(subprocess.Popen(command, env=environment, cwd=place, stdout=out, stderr=out))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_same_bits_in_every_mode(name: str) -> None:
    folder, _, program = name.partition("/")
    for rank in _told(folder):
        told = rank[program]
        assert "failed" not in told, told["failed"]
        modes = {mode: figures for mode, figures in told.items() if isinstance(figures, dict)}
        assert len(modes) == 4
        assert {mode: figures["different"] for mode, figures in modes.items()} == {mode: [] for mode in modes}
        for mode in ("data_dump.json, statistics", "acl.json, elements"):
            assert modes[mode]["captured"] > 5, modes[mode]
            assert modes[mode]["executed"] >= modes[mode]["captured"]


@pytest.mark.timeout(len(FOLDERS) * (SECONDS + 60))
def test_the_collection_holds_at_least_forty_programs() -> None:
    ran = [(folder, name, told) for folder in FOLDERS for rank in _told(folder)[:1] for name, told in rank.items()]
    values = sum(told.get("values", 0) for *_, told in ran)
    print(f"{len(ran)} programs, {values} values of each compared bit by bit in 4 modes")
    assert [f"{folder}/{name}" for folder, name, _ in ran] == NAMES
    assert len(ran) >= 40
