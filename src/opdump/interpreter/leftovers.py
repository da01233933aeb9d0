"""Names temporary files for the process that writes them, so that those of dead processes can be found and removed.

    .4f1c02aa91d3-41237-8812345-9f2c6d10e4b7-140213-17.part
     place        pid   start   of the sink  thread serial

The place is this start of this system, and the container in it: a process of another is never taken for dead.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

SUFFIX: Final = ".part"
_PROCESS: Final = re.compile(r"(?P<place>[0-9a-f]{12})-(?P<pid>[0-9]{1,10})-(?P<start>[0-9]{1,20})", re.ASCII)
_NAME: Final = re.compile(
    rf"\.(?P<process>{re.sub('[?]P<[a-z]+>', '?:', _PROCESS.pattern)})-[0-9a-f-]+\.part", re.ASCII
)
_START_FIELD: Final = 19  # of /proc/{pid}/stat behind the name of the command


def this_process() -> str:
    """Identifies this process among all, also among those of other systems and of other times."""
    return named_process(os.getpid())


def named_process(pid: int) -> str:
    """Identifies another process of this system."""
    return f"{_place()}-{pid}-{_start_of(pid) or 0}"


def is_dead(process: str) -> bool:
    """Whether what `this_process` named is a process of this system that has ended."""
    match = _PROCESS.fullmatch(process)
    if match is None or match["place"] != _place():
        return False
    start = _start_of(int(match["pid"]))
    return start is None or (start != int(match["start"]) and int(match["start"]) > 0)


def ancestors() -> tuple[int, ...]:
    """The ids of the processes that started this one, directly or not, as far as the system knows them and they still run."""
    found = [os.getppid()]
    with suppress(OSError, ValueError, IndexError):
        while found[-1] > 1:
            text = Path(f"/proc/{found[-1]}/stat").read_bytes()
            found.append(int(text.rpartition(b")")[2].split()[1]))
    return tuple(found)


def own_prefix() -> str:
    return f".{this_process()}-"


def temporary_name() -> str:
    """A name for a file that this thread writes now."""
    return f"{own_prefix()}{threading.get_ident():x}{SUFFIX}"


def entries_below(root: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory, links themselves and not what they lead to; what cannot be listed is left out."""
    pending = [str(root)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def is_left_over(name: str) -> bool:
    """Whether it is the name of a temporary file of a process of this system that is dead."""
    match = _NAME.fullmatch(name)
    return match is not None and is_dead(match["process"])


def remove(entry: os.DirEntry[str]) -> None:
    """Remove a temporary file, or a directory of them; what cannot be removed stays."""
    with suppress(OSError):
        if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def clear(directory: int) -> None:
    """Remove the temporary files of dead processes from an open directory, and not from those below it; what cannot be removed stays."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(SUFFIX) and is_left_over(name):
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)


@cache
def _place() -> str:
    """The host, this start of it, and the container whose numbers of processes are counted apart."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _start_of(pid: int) -> int | None:
    """When a process started, in ticks since the start of the system; None where it is dead, 0 where that is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() or not _runs(pid) else 0
    except OSError:
        return 0
    state, *fields = text.rpartition(b")")[2].split()
    if state in (b"Z", b"X") and not _has_threads(pid):
        return None  # it ended, and its parent has not looked
    return int(fields[_START_FIELD - 1])


def _has_threads(pid: int) -> bool:
    """Whether threads of a process run whose first thread has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
