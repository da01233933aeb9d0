"""The start-up hook: with the variable OPDUMP_START, the plain command `python train.py` is captured.

    OPDUMP_START=1 MINDSPORE_DUMP_CONFIG=data_dump.json python train.py
    OPDUMP_START="-c acl.json --strict" python -m package.train

The file `opdump_start.pth`, which is installed with the package, lets every Python check two variables when it starts, and calls `begin` if one of
them is set. Without them, nothing of opdump is imported. See docs/start.md.
"""

from __future__ import annotations

import os
import sys

START_VARIABLE = "OPDUMP_START"
"""`1`, or options of `opdump run`."""
FAMILY_VARIABLE = "OPDUMP_FAMILY"
"""Set during a capture, for the processes that its program starts."""
_OWN = ("opdump", "msaccucmp")


def begin() -> None:
    """Prepare this process to be captured as soon as it imports a framework. Called before the program starts.

    Nothing is read or created before that import: a program without a framework runs as if opdump were not installed.
    """
    from opdump.interpreter.imports import waits

    # Python may find the .pth file in several directories, for example that of the user and that of the system.
    if waits() or _is_own_command(sys.orig_argv):
        return
    family = os.environ.get(FAMILY_VARIABLE, "")
    if family:
        from opdump.startup.child_process import await_work

        if await_work(family):
            return
    asked = os.environ.get(START_VARIABLE, "").strip()
    if asked in ("", "0"):
        return
    from opdump.startup.child_process import await_work_of_ancestors
    from opdump.startup.plain_command import await_framework

    if await_work_of_ancestors(asked):
        return
    await_framework(asked)


def _is_own_command(command: list[str]) -> bool:
    """Return whether the process is a command of opdump, which starts its own capture."""
    for place, word in enumerate(command[1:], start=1):
        if word == "-m":
            return command[place + 1 : place + 2] in [[name] for name in _OWN]
        if not word.startswith("-"):
            return os.path.basename(word) in _OWN
        if word in ("-c", "-"):
            return False
    return False
