"""Watches the starts of processes by audit hooks of Python, and finds those that cannot be followed.

A process finds its run by a variable of its environment. Nobody adds that to an environment that the program has put together itself:
the process would see another one than it was given.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from opdump.interpreter.compiled import compiled

FAMILY_VARIABLE: Final = "OPDUMP_FAMILY"
"""Names the directory of the run that this process belongs to."""
START_VARIABLE: Final = "OPDUMP_START"
"""Asks for a capture; who has it alone looks for the run among the processes that started it."""
Kind = Literal["forked", "started", "replaced"]
_PYTHON: Final = re.compile(r"python[\d.]*(\.exe)?")


@dataclass(frozen=True, slots=True)
class Start:
    """A process that is about to begin. `replaced`: this process becomes it. `command` is empty for a fork, and where it is not known."""

    kind: Kind
    command: tuple[str, ...] = ()
    file: str = ""
    finds_the_run: bool = True
    """It gets an environment with one of the variables, or this process's own."""

    @property
    def is_python(self) -> bool:
        """Whether the command runs Python, itself or through a shell, `env` or the like; True where it is not known."""
        if not self.command:
            return True
        words = " ".join(self.command).split()
        return any(_PYTHON.fullmatch(os.path.basename(word)) for word in words) or _is_script(self.command[0])

    @property
    def obstacle(self) -> str:
        """Why a Python that starts so cannot be followed; nothing where it can, or is none."""
        if self.kind == "forked" or not self.command or not self.is_python:
            return ""
        if not self.finds_the_run:
            variable = START_VARIABLE if os.environ.get(START_VARIABLE, "0") not in ("", "0") else FAMILY_VARIABLE
            return f"with an environment without {variable}: pass that on"
        if _PYTHON.fullmatch(os.path.basename(self.command[0])) and _leaves_out_site(self.command[1:]):
            return "by python -S, which reads no .pth file: leave that out"
        return ""


def watch_starts(call: Callable[[Start], object]) -> None:
    """Calls a function before each start of a process, in this process and those that are forked from it, for ever: Python forgets no
    audit hook. A start that C code makes by itself is not seen.
    """
    readers = _READERS  # names of a module are gone when the interpreter ends, and hooks are called to the last

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        reader = readers.get(event)
        if reader is None:
            return
        try:
            start = reader(arguments)
        except (TypeError, ValueError):
            return  # no command at all: Python raises in a moment, and starts nothing
        if start is not None:
            call(start)

    native = compiled()
    if native is not None:
        native.add_audit_hook(hook, tuple(readers))
    else:  # called for every event, so that each `id()` takes half a microsecond longer
        sys.addaudithook(hook)


def _popen(arguments: tuple[Any, ...]) -> Start:
    file, words, _, environ = arguments
    command = _texts(words)
    return Start("started", command, os.fsdecode(file or (command or ("",))[0]), _finds_the_run(environ))


def _posix_spawn(arguments: tuple[Any, ...]) -> Start | None:
    if sys._getframe(2).f_code.co_filename.endswith("subprocess.py"):
        return None  # the hook had it as a Popen
    return _executed("started", arguments)


def _executed(kind: Kind, arguments: tuple[Any, ...]) -> Start:
    file, words, environ = arguments
    return Start(kind, _texts(words), "" if isinstance(file, int) else os.fsdecode(file), _finds_the_run(environ))


def _import(arguments: tuple[Any, ...]) -> Start | None:
    # multiprocessing and what is made like it start processes by calls without a hook; each loads the module for it just before.
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
    """Whether it is a file that names Python in its first line, as torchrun does."""
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


def _leaves_out_site(words: Sequence[str]) -> bool:
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            return False
        if word.startswith("--"):
            continue
        letters, option, value = re.fullmatch("-([^cmWX]*)([cmWX]?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]  # everything matches
        if "S" in letters:
            return True
        if option in ("c", "m"):
            return False  # what follows is the program's
        if option and not value:
            next(rest, None)
    return False
