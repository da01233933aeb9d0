"""Watches the starts of processes with Python's audit hooks, and finds those that cannot be followed.

A process finds its run by an environment variable. It is not added to an environment that the program has composed itself, because the process
would then see a different environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from opdump.interpreter.critical_sections import compiled

FAMILY_VARIABLE: Final = "OPDUMP_FAMILY"
"""Names the directory of the run to which this process belongs."""
START_VARIABLE: Final = "OPDUMP_START"
"""Requests a capture. A process that has only this variable searches for the run among its ancestors."""
Kind = Literal["forked", "started", "replaced"]
_PYTHON: Final = re.compile(r"python[\d.]*(\.exe)?")


@dataclass(frozen=True, slots=True)
class Start:
    """A process that is about to start. `replaced`: this process becomes it. `command` is empty for a fork, and if it is unknown."""

    kind: Kind
    command: tuple[str, ...] = ()
    file: str = ""
    finds_the_run: bool = True
    """Whether its environment has one of the variables, or is that of this process."""

    @property
    def is_python(self) -> bool:
        """Whether the command runs Python, directly or through a shell, `env` or the like. True if the command is unknown."""
        if not self.command:
            return True
        words = " ".join(self.command).split()
        return any(_PYTHON.fullmatch(os.path.basename(word)) for word in words) or _is_script(self.command[0])

    @property
    def obstacle(self) -> str:
        """Why a Python process that starts like this cannot be followed. Empty if it can, or if it is not Python."""
        if self.kind == "forked" or not self.command or self.finds_the_run or not self.is_python:
            return ""
        variable = START_VARIABLE if os.environ.get(START_VARIABLE, "0") not in ("", "0") else FAMILY_VARIABLE
        return f"with an environment without {variable}: pass that on"


def watch_starts(call: Callable[[Start], object]) -> None:
    """Call a function before each start of a process, in this process and those forked from it. This is permanent, because Python cannot remove an
    audit hook. A start in C code without an audit event is not seen.
    """
    readers = _READERS  # hooks are called to the very end of the interpreter, when globals of modules are gone

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        reader = readers.get(event)
        if reader is None:
            return
        try:
            start = reader(arguments)
        except (TypeError, ValueError):
            return  # not a command: Python raises an error next, and starts nothing
        if start is not None:
            call(start)

    native = compiled()
    if native is not None:
        native.add_audit_hook(hook, tuple(readers))
    else:  # called for every event: each `id()` takes half a microsecond longer
        sys.addaudithook(hook)


def _popen(arguments: tuple[Any, ...]) -> Start:
    file, words, _, environ = arguments
    command = _texts(words)
    return Start("started", command, os.fsdecode(file or (command or ("",))[0]), _finds_the_run(environ))


def _posix_spawn(arguments: tuple[Any, ...]) -> Start | None:
    if sys._getframe(2).f_code.co_filename.endswith("subprocess.py"):
        return None  # already seen as a Popen
    return _executed("started", arguments)


def _executed(kind: Kind, arguments: tuple[Any, ...]) -> Start:
    file, words, environ = arguments
    return Start(kind, _texts(words), "" if isinstance(file, int) else os.fsdecode(file), _finds_the_run(environ))


def _import(arguments: tuple[Any, ...]) -> Start | None:
    # multiprocessing and similar modules start processes by calls without an audit event; each imports its popen module just before.
    return Start("started") if str(arguments[0]).rpartition(".")[2].startswith("popen_") else None


_READERS: Final[dict[str, Callable[[tuple[Any, ...]], Start | None]]] = {
    "subprocess.Popen": _popen,
    "os.posix_spawn": _posix_spawn,
    "os.exec": lambda arguments: _executed("replaced", arguments),
    "os.system": lambda arguments: Start("started", _texts(arguments[0])),
    "os.fork": lambda _: Start("forked"),
    "os.forkpty": lambda _: Start("forked"),
    "import": _import,
}


def _texts(words: Any) -> tuple[str, ...]:
    if isinstance(words, str | bytes | os.PathLike):
        words = [words]
    return tuple(os.fsdecode(word) for word in words)


def _finds_the_run(environ: Any) -> bool:
    return environ is None or any(
        name in environ or os.fsencode(name) in environ for name in (FAMILY_VARIABLE, START_VARIABLE)
    )


def _is_script(command: str) -> bool:
    """Return whether the command is a file that names Python in its first line, such as torchrun."""
    import shutil

    file = shutil.which(command)
    if file is None:
        return False
    try:
        with open(file, "rb") as script:
            first = script.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first
