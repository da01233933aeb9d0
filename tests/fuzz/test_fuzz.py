"""A short version of `make fuzz`: inputs that found a defect before, some inputs per reader, and readers that fail on
purpose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from opdump.index.opening import SCHEMA_VERSION
from tests.fuzz.mutations import MESSAGE, input_of
from tests.fuzz.readers import READERS

_EACH = 60


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, because it forks and other tests leave threads."""
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)


def test_seeds_and_inputs_that_found_a_defect_are_read_or_refused() -> None:
    ended = _run("tests.fuzz", "--known")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = [line.split() for line in ended.stdout.splitlines()]
    assert [name for name, *_ in told] == [reader.name for reader in READERS]
    assert [name for name, _, read, *_ in told if read == "0"] == [], (
        "a reader refuses every seed, so mutations of them test almost nothing"
    )


def test_the_seed_of_the_index_is_of_the_version_that_is_written() -> None:
    (reader,) = (each for each in READERS if each.name == "index")
    (seed,) = reader.seeds().values()
    assert seed[60:64] == SCHEMA_VERSION.to_bytes(4, "big"), "create a seed that uses everything in this version"


def test_some_mutated_inputs_of_each_reader_are_read_or_refused() -> None:
    ended = _run("tests.fuzz", "--each", str(_EACH), "--seed", "0", "--jobs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{_EACH * len(READERS)} inputs in" in ended.stdout


def test_every_way_to_fail_is_noticed() -> None:
    ended = _run("tests.fuzz.failing_readers")
    found = dict(map(json.loads, ended.stdout.splitlines()))
    places = {name: place and place.removesuffix(" nowhere in opdump") for name, place in found.items()}
    assert places == {
        "is_read": None,
        "refuses": None,
        "raises": "ValueError",
        "swallows_everything": "too much of the processor's time",
        "matches_for_ever": "too much of the processor's time",
        "asks_for_much_memory": "MemoryError",
        "takes_much_memory": "memory",
        "writes_much": "OSError",
        "dies": "SIGABRT",
        "leaves": "SystemExit",
    }, ended.stderr


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_number_gives_the_same_input_again_and_most_inputs_are_new(reader: object) -> None:
    assert reader in READERS
    (found,) = (each for each in READERS if each is reader)
    seeds = list(found.seeds().values())
    made = [input_of(seeds, found.kind, found.name, 7, number) for number in range(40)]
    assert made == [input_of(seeds, found.kind, found.name, 7, number) for number in range(40)]
    assert len({data for _, data in made} - set(seeds)) > 25


def test_mutations_of_messages_keep_lengths_right() -> None:
    """Most mutated messages can be parsed, unlike mutated plain bytes."""
    from opdump.errors import CorruptDumpError
    from opdump.layouts.graph_files.mindspore.pb import decode_pb

    (reader,) = (each for each in READERS if each.name == "mindspore_pb")
    seeds = list(reader.seeds().values())
    parsed = 0
    for number in range(60):
        random = Random(number)
        try:
            decode_pb(MESSAGE[0](random.choice(seeds), random, seeds))
            parsed += 1
        except CorruptDumpError:
            continue
    assert parsed > 20
