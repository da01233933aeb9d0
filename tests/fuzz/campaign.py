"""Many inputs for many readers, in several processes; one file is kept for each kind of failure, made as small as possible."""

from __future__ import annotations

import hashlib
import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.bounded import Counts, Finding, Process, outcome, start
from tests.fuzz.mutations import input_of
from tests.fuzz.readers import Reader

_SECONDS: Final = 10.0


def minimised(data: bytes, still_fails: Callable[[bytes], bool]) -> bytes:
    """The data without parts that its failure does not need, as far as a few seconds allow; single bytes are tried
    last.
    """
    end = time.monotonic() + _SECONDS
    size = max(1, len(data) // 2)
    while size and time.monotonic() < end:
        place = 0
        while place < len(data) and time.monotonic() < end:
            fewer = data[:place] + data[place + size :]
            if still_fails(fewer):
                data = fewer
            else:
                place += size
        size //= 2
    return data


_BATCH: Final = 2000
"""Inputs per process."""
_MOST_DEATHS: Final = 200
"""A reader that killed more processes than this has been tested enough."""


@dataclass(slots=True)
class Found:
    """The results of a reader. `places` has the first finding of each kind, `often` the number of findings."""

    reader: Reader
    inputs: int = 0
    read: int = 0
    refused: int = 0
    findings: int = 0
    seconds: float = 0.0
    kilobytes: int = 0
    deaths: int = 0
    places: dict[str, Finding] = field(default_factory=dict)
    often: dict[str, int] = field(default_factory=dict)

    def take(self, counts: Counts, findings: Sequence[Finding]) -> None:
        self.read += counts.read
        self.refused += counts.refused
        self.findings += len(findings)
        for each in findings:
            self.places.setdefault(each.place, each)
            self.often[each.place] = self.often.get(each.place, 0) + 1


@dataclass(slots=True)
class _Share:
    """The remaining input numbers of one batch."""

    found: Found
    first: int
    end: int
    began: float = 0.0


def shares(readers: Sequence[Reader], inputs: int) -> dict[str, int]:
    """The number of inputs for each reader: at least one."""
    whole = sum(reader.share for reader in readers)
    return {reader.name: max(1, inputs * reader.share // whole) for reader in readers}


def fuzz(
    readers: Sequence[Reader], *, wanted: Mapping[str, int], seed: int, jobs: int, ended: Callable[[Found], None]
) -> list[Found]:
    """Read `wanted` mutated inputs with each reader, in `jobs` processes; call `ended` for each reader that is done."""
    found = [Found(reader) for reader in readers]
    waiting = [
        _Share(each, first, min(first + _BATCH, wanted[each.reader.name]))
        for each in found
        for first in range(0, wanted[each.reader.name], _BATCH)
    ]
    waiting.reverse()
    unfinished = {each.reader.name: sum(share.found is each for share in waiting) for each in found}
    with selectors.DefaultSelector() as selector:
        working: dict[int, tuple[Process, _Share]] = {}
        while waiting or working:
            while waiting and len(working) < jobs:
                share = waiting.pop()
                share.began = time.monotonic()
                process = start(share.found.reader, _inputs(share, seed))
                working[process.told] = process, share
                selector.register(process.told, selectors.EVENT_READ)
            for key, _ in selector.select():
                process, share = working[key.fd]
                if process.hear():
                    continue
                selector.unregister(key.fd)
                del working[key.fd]
                if not _ended(process, share):
                    waiting.append(share)
                    continue
                name = share.found.reader.name
                unfinished[name] -= 1
                if not unfinished[name]:
                    ended(share.found)
    return found


def _inputs(share: _Share, seed: int) -> Iterator[tuple[int, str, bytes]]:
    reader = share.found.reader
    seeds = reader.seeds()
    places, contents = list(seeds), list(seeds.values())
    for number in range(share.first, share.end):
        which, data = input_of(contents, reader.kind, reader.name, seed, number)
        yield number, places[which], data


def _ended(process: Process, share: _Share) -> bool:
    """Add the results of a process; return whether its share is finished."""
    counts, kilobytes = process.end()
    found = share.found
    found.take(counts, process.findings)
    found.inputs += max(0, counts.last + 1 - share.first)
    found.seconds += time.monotonic() - share.began
    found.kilobytes = max(found.kilobytes, kilobytes)
    died = counts.read + counts.refused + counts.findings < counts.last + 1 - share.first or counts.last < 0
    found.deaths += died
    share.first = max(counts.last + 1, share.first + 1)
    return share.first >= share.end or found.deaths > _MOST_DEATHS


def keep(found: Found, seed: int, folder: Path) -> Iterator[tuple[Finding, Path]]:
    """Save the first input of each kind of failure, cheaply minimised; yield the finding and its file."""
    seeds = found.reader.seeds()
    places, contents = list(seeds), list(seeds.values())
    for finding in found.places.values():
        which, data = input_of(contents, found.reader.kind, found.reader.name, seed, max(0, finding.number))

        def still_fails(fewer: bytes, place: str = places[which], wanted: str = finding.place) -> bool:
            other = outcome(found.reader, place, fewer)
            return other is not None and other.place == wanted

        if still_fails(data):
            data = minimised(data, still_fails)
        path = folder / found.reader.name / hashlib.sha1(data).hexdigest()[:12] / places[which]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        yield finding, path
