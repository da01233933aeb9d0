"""A child process of a captured program that is a new Python: spawned by multiprocessing, or by subprocess."""

from __future__ import annotations

import sys
from typing import Final

from opdump.interpreter.imports import stand_down, wait_for

_FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "mindspore", "onnxruntime")


def await_work(directory: str) -> bool:
    """Capture this process after it has imported the framework of the run and received its work. Return False if the run has ended."""
    from opdump.capturing.family import role_of_command

    role = role_of_command(sys.orig_argv)
    if role == "server":
        return True
    import os

    if not os.path.isdir(directory):
        return False
    await_framework_of(directory)
    return True


def await_work_of_ancestors(asked: str) -> bool:
    """The same for a process whose environment does not name the run, but that has an ancestor in one. Return False if there is none."""
    import os
    import tempfile

    from opdump.interpreter.leftovers import ancestors, named_process

    try:
        names = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("opdump-family--")]
    except OSError:
        return False
    # Runs of other users do not matter. Up to here, no module is imported that is slow or may be missing.
    begun = tuple(f"opdump-family--{named_process(process)}--" for process in (ancestors() if names else ()))
    if not any(name.startswith(begun) for name in names):
        return False
    from opdump.capturing.family import Family

    directory = Family.of_ancestors(asked)
    return bool(directory) and await_work(directory)


def await_framework_of(directory: str) -> None:
    """Capture this process once it has imported the framework of the run."""
    wait_for(_FRAMEWORKS, before=lambda _: None, after=lambda name: _begin(directory, name))


def _begin(directory: str, name: str) -> None:
    from opdump.capturing.family import Family, after_bootstrap, role_here, role_of_command
    from opdump.capturing.processes import begin_child, leave_out_for

    family = Family.named(directory)
    if family is None:
        return
    is_wanted = name == (family.facts["framework"] or name)
    if is_wanted:
        stand_down()

    def begin() -> None:
        if is_wanted:
            begin_child(family, name)
        else:
            leave_out_for(family, name)

    if role_of_command(sys.orig_argv) == "undecided" and (role_here() == "undecided" or _is_server()):
        after_bootstrap(begin)
    else:
        begin()


def _is_server() -> bool:
    """Return whether this is the fork server of multiprocessing, and not one of its processes."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is None or multiprocessing.parent_process() is None
