"""Processes that read inputs within limits on memory, on CPU time per input, and on what they may write.

One process reads many inputs, and only an input that kills it costs a process. Its position is in memory that the
parent shares.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from opdump.errors import OpdumpError
from tests.fuzz.readers import INPUT, OUTPUT, Reader

_MEMORY: Final = 512 << 20
"""The address space that an input may add to the process; inputs have at most 128 KiB."""
_GROWTH: Final = 128 << 20
"""The increase of peak resident memory that an input may cause."""
SECONDS: Final = 5.0
"""CPU time per input."""
_WAITING: Final = 120.0
_FILE: Final = 64 << 20
_SOURCES: Final = f"{os.sep}opdump{os.sep}"
_NUMBERS: Final = struct.Struct("<qqqq")


class Counts(NamedTuple):
    """`last` is the number of the input that is being read or was read last."""

    last: int = -1
    read: int = 0
    refused: int = 0
    findings: int = 0


class Finding(NamedTuple):
    """What went wrong with an input. Two findings with the same `place` count as the same defect."""

    number: int
    place: str
    text: str


@dataclass(slots=True)
class Process:
    """A running process, and the pipe through which it reports findings."""

    pid: int
    told: int
    shared: mmap.mmap
    scratch: Path
    findings: list[Finding] = field(default_factory=list)
    _text: bytes = b""

    def counts(self) -> Counts:
        return Counts(*_NUMBERS.unpack_from(self.shared))

    def hear(self) -> bool:
        """Read what the process reported; False if it has ended."""
        part = os.read(self.told, 1 << 16)
        self._text += part
        *lines, self._text = self._text.split(b"\n")
        self.findings += [Finding(*json.loads(line)) for line in lines]
        return bool(part)

    def end(self) -> tuple[Counts, int]:
        """Wait for the end; return the counts and the peak resident memory in KiB. A crash is a finding of the last
        input.
        """
        _, status, used = os.wait4(self.pid, 0)
        counts = self.counts()
        if status != 0:
            name = _name_of(status)
            text = (self.scratch / "death").read_text(errors="replace")
            self.findings.append(Finding(counts.last, f"{name} {_place_in(text)}", f"{name}\n{text[-3000:]}"))
        os.close(self.told)
        self.shared.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return counts, used.ru_maxrss


def start(reader: Reader, inputs: Iterable[tuple[int, str, bytes]], *, seconds: float = SECONDS) -> Process:
    """Start a process that reads the inputs: number, path in the directory of inputs, content."""
    shared = mmap.mmap(-1, _NUMBERS.size)
    _NUMBERS.pack_into(shared, 0, *Counts())
    scratch = Path(tempfile.mkdtemp(prefix="opdump-fuzz-"))
    told, tell = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _work(reader, inputs, _Teller(tell, shared), scratch, seconds)
    os.close(tell)
    return Process(pid, told, shared, scratch)


def outcome(reader: Reader, place: str, data: bytes, *, seconds: float = SECONDS) -> Finding | None:
    """The finding for one input, read in its own process."""
    process = start(reader, [(0, place, data)], seconds=seconds)
    while process.hear():
        pass
    process.end()
    return process.findings[0] if process.findings else None


@dataclass(slots=True)
class _Teller:
    pipe: int
    shared: mmap.mmap
    counts: Counts = field(default_factory=Counts)

    def count(self, **changed: int) -> None:
        self.counts = self.counts._replace(**changed)
        _NUMBERS.pack_into(self.shared, 0, *self.counts)

    def tell(self, place: str, text: str) -> None:
        self.count(findings=self.counts.findings + 1)
        os.write(self.pipe, json.dumps([self.counts.last, place, text[-3000:]]).encode() + b"\n")


def _work(
    reader: Reader, inputs: Iterable[tuple[int, str, bytes]], teller: _Teller, scratch: Path, seconds: float
) -> NoReturn:
    status = 1
    try:
        _bind(scratch)
        base = scratch / INPUT
        base.mkdir()
        (scratch / OUTPUT).mkdir()
        if reader.around is not None:
            reader.around(base)
        honest = reader.seeds() if reader.around is not None else {}
        peak = _peak()
        for number, place, data in inputs:
            teller.count(last=number)
            path = base / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            _read(reader.read, path, teller, seconds)
            grown = _peak() - peak
            peak += grown
            if grown > _GROWTH:
                teller.tell("memory", f"resident memory grew by {grown >> 20} MiB")
            if honest:
                path.write_bytes(honest[place])
            _empty(scratch / OUTPUT)
        status = 0
    except BaseException:  # noqa: BLE001  # the process must not continue as a copy of its parent
        traceback.print_exc(file=sys.__stderr__)
        with contextlib.suppress(OSError):
            (scratch / "death").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _bind(scratch: Path) -> None:
    """Apply the limits. A fatal signal leaves a traceback in the file `death`."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    warnings.simplefilter("error")
    trace = (scratch / "death").open("w")
    faulthandler.enable(trace)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
        faulthandler.register(number, trace, chain=True)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    if not _is_sanitized():
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _is_sanitized() -> bool:
    """Under a sanitizer, the address space cannot be limited: its own memory maps terabytes."""
    return "san" in os.environ.get("LD_PRELOAD", "")


def _read(read: Callable[[Path], object], path: Path, teller: _Teller, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _WAITING)
    try:
        read(path)
    except OpdumpError:
        teller.count(refused=teller.counts.refused + 1)
    except BaseException as error:  # noqa: BLE001  # any other error is a finding
        text = traceback.format_exc()
        teller.tell(f"{type(error).__name__} {_place_in(text)}", text)
    else:
        teller.count(read=teller.counts.read + 1)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _empty(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _place_in(trace: str) -> str:
    """The innermost line of opdump in a traceback: Python prints it last, faulthandler first."""
    lines = [line for line in trace.splitlines() if line.lstrip().startswith("File ") and _SOURCES in line]
    lines = [line for line in lines if f"{os.sep}tests{os.sep}" not in line] or lines
    if not lines:
        return "nowhere in opdump"
    line = lines[0] if "most recent call first" in trace else lines[-1]
    file, _, rest = line.strip().removeprefix("File ").partition(", line ")
    return f"{file.strip(chr(34)).rpartition(_SOURCES)[2]}:{rest.partition(',')[0].partition(' ')[0]}"


def _name_of(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {
            signal.SIGPROF: "too much of the processor's time",
            signal.SIGALRM: f"more than {_WAITING:g} s",
        }
        return names.get(signal.Signals(number), signal.Signals(number).name)
    return f"exit status {os.waitstatus_to_exitcode(status)}"
