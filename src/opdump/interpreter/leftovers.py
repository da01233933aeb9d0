"""Names temporary files after the process that writes them, so that those of dead processes can be found and removed.

    .4f1c02aa91d3-41237-8812345-9f2c6d10e4b7-140213-17.part
     place        pid   start   of the sink  thread serial

The place identifies this boot of the system and the container, so that a process of another system is never considered dead.
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
_START_FIELD: Final = 19  # of /proc/{pid}/stat, counted after the name of the command


def this_process() -> str:
    """Return an ID of this process that is unique, also among other systems and other times."""
    return named_process(os.getpid())


def named_process(pid: int) -> str:
    """Return the ID of another process of this system."""
    return f"{_place()}-{pid}-{_start_of(pid) or 0}"


def is_dead(process: str) -> bool:
    """Return whether an ID of `this_process` belongs to a process of this system that has ended."""
    match = _PROCESS.fullmatch(process)
    if match is None or match["place"] != _place():
        return False
    start = _start_of(int(match["pid"]))
    return start is None or (start != int(match["start"]) and int(match["start"]) > 0)


def ancestors() -> tuple[int, ...]:
    """Return the process IDs of the ancestors of this process, as far as the system knows them and they are running."""
    found = [os.getppid()]
    with suppress(OSError, ValueError, IndexError):
        while found[-1] > 1:
            text = Path(f"/proc/{found[-1]}/stat").read_bytes()
            found.append(int(text.rpartition(b")")[2].split()[1]))
    return tuple(found)


def own_prefix() -> str:
    return f".{this_process()}-"


def temporary_name() -> str:
    """Return the name for a temporary file of this thread."""
    return f"{own_prefix()}{threading.get_ident():x}{SUFFIX}"


def entries_below(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a directory. Links are not followed; directories that cannot be listed are skipped."""
    pending = [str(root)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def is_left_over(name: str) -> bool:
    """Return whether the name is that of a temporary file of a dead process of this system."""
    match = _NAME.fullmatch(name)
    return match is not None and is_dead(match["process"])


def remove(entry: os.DirEntry[str]) -> None:
    """Remove a temporary file, or a directory of them, if possible."""
    with suppress(OSError):
        if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def clear(directory: int) -> None:
    """Remove the temporary files of dead processes from an open directory, but not from those below it, if possible."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(SUFFIX) and is_left_over(name):
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)


@cache
def _place() -> str:
    """Return a hash of the host, its boot, and the container with its own process IDs."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it is dead, 0 if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() or not _runs(pid) else 0
    except OSError:
        return 0
    state, *fields = text.rpartition(b")")[2].split()
    if state in (b"Z", b"X") and not _has_threads(pid):
        return None  # ended, and its parent has not collected the exit status
    return int(fields[_START_FIELD - 1])


def _has_threads(pid: int) -> bool:
    """Return whether threads of a process are running although its first thread has ended."""
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
