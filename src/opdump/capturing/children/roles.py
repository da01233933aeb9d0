"""The role of a process: one of the program's own, or one that only serves it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

Role = Literal["program", "undecided", "server"]
"""`undecided`: a multiprocessing process that has not received its work yet; `server`: it does none of the program's work."""

_SERVERS = (
    "torch.utils.data.",
    "torch._inductor.",
    "torch._dynamo.",
    "multiprocessing.resource",
    "multiprocessing.managers.",
)
"""Modules whose processes run no operators of the program: data-loader workers, PyTorch's compiler, trackers."""


def role_of_command(command: Sequence[str]) -> Role:
    """Return the role of a process from the command line that started it."""
    text = " ".join(command)
    if "multiprocessing.resource_tracker" in text or "torch/_inductor/compile_worker" in text:
        return "server"
    if "multiprocessing.spawn import spawn_main" in text or "multiprocessing.forkserver import main" in text:
        return "undecided"
    return "program"


def role_here() -> Role:
    """Return the role of this process, for multiprocessing from the work that it has received."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return "program"
    process: Any = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        return "undecided"
    return _role_of(process)


def awaited_processes() -> frozenset[int]:
    """Return the IDs of the program's own processes for which this one waits when its interpreter ends, as multiprocessing does."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return frozenset()
    children = multiprocessing.active_children()
    return frozenset(child.pid for child in children if not child.daemon and _role_of(child) == "program")


def _role_of(process: Any) -> Role:
    target = getattr(process, "_target", None)
    module = getattr(target, "__module__", None) or type(process).__module__
    return "server" if f"{module}.".startswith(_SERVERS) else "program"
