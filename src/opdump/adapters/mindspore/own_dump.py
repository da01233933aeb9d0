"""MindSpore's own dump of compiled code, kept by opdump: where it goes, and what it dumps.

MindSpore reads the file that MINDSPORE_DUMP_CONFIG names once, when it first compiles something, and dumps to the end of the process. So
there is one such dump in a process, whichever captures look at it; who looks at it removes what it has read.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from opdump.errors import DumpPathError
from opdump.plan import DumpPlan
from opdump.sink.temporary_directories import remove_own, temporary_directory

VARIABLE: Final = "MINDSPORE_DUMP_CONFIG"
_DUMPED_INTO: Final = re.compile(r"[A-Za-z0-9_/-]+", re.ASCII)
_EVERY_DEVICE: Final = list(range(8))


class OwnDump:
    """The dump of this process. `root` is where MindSpore files it, once it has begun."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._given: dict[str, Any] = {}
        """The configuration that MindSpore has read, or is going to read."""
        self._is_read = False

    @property
    def root(self) -> Path:
        assert self._directory is not None, "it was asked for"
        return self._directory / "dump"

    def ask_for(self, plan: DumpPlan) -> str:
        """Has MindSpore dump what a plan needs of it. Where that comes too late, why."""
        wanted = config_of(plan)
        if self._directory is None:
            self._directory = _directory_for(plan)
            atexit.register(remove_own, self._directory)
        if not self._is_read:
            self._given = wanted
            text = json.dumps({**wanted, _COMMON: {**wanted[_COMMON], "path": str(self.root)}}, indent=2)
            (self._directory / "data_dump.json").write_text(text, encoding="utf-8")
            return ""
        if wanted == self._given:
            return ""
        differing = sorted(key for key, value in wanted[_COMMON].items() if value != self._given[_COMMON].get(key))
        return (
            f"MindSpore reads once what it dumps of compiled code, and an earlier capture in this process has asked for another "
            f"{', '.join(differing)}: that still holds"
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In the block MindSpore finds no other configuration: what it runs operator by operator has it look for one, too."""
        before = os.environ.pop(VARIABLE, None)
        try:
            yield
        finally:
            if before is not None:
                os.environ.setdefault(VARIABLE, before)

    @contextmanager
    def configured(self) -> Iterator[None]:
        """The block compiles: MindSpore finds its configuration there, and nobody else does, no process that the program starts."""
        if self._is_read or self._directory is None:
            yield
            return
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self._directory / "data_dump.json")
        try:
            yield
        finally:
            self._is_read = True
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before


def _directory_for(plan: DumpPlan) -> Path:
    """Where the dump of this process goes: to where the files are going to be, so that they need not be copied, or among temporary ones.

    Raises DumpPathError where MindSpore can dump nowhere.
    """
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")]  # noqa: S108  a name of its own below
    if plan.saves_tensors and plan.layout_facts.files == "tensors" and plan.mode.files_selected and plan.path.is_dir():
        places.insert(0, plan.path)
    for place in places:
        real = os.path.realpath(place)
        if _DUMPED_INTO.fullmatch(real) and os.access(real, os.W_OK | os.X_OK):
            return temporary_directory("mindspore", Path(real))
    raise DumpPathError(
        f"{places[0]}: MindSpore dumps into paths of letters, digits, '-' and '_' alone, and there is no such directory for temporary files; "
        "set TMPDIR to one"
    )


OWN_DUMP: Final = OwnDump()
_COMMON: Final = "common_dump_settings"


def chooses_by_name(plan: DumpPlan) -> bool:
    """Whether MindSpore chooses operators itself, by `kernels`: where files have the names that it gives them."""
    return plan.selection == "kernels" and plan.mode.files_selected and plan.layout != "mindspore-2.3"


def config_of(plan: DumpPlan) -> dict[str, Any]:
    """What MindSpore is to dump so that a plan can be recorded, but for the path: elements, since on a CPU it gives nothing else.

    Where the recorder chooses among operators, by what they are called in other configurations or by what they computed, it needs all; so it
    does of iterations, where it counts executions of models.
    """
    by_name = chooses_by_name(plan)
    io = 0 if plan.inputs == plan.outputs or plan.mode.detects_overflow else 1 if plan.inputs else 2
    common = {
        "op_debug_mode": 0,
        "dump_mode": 1 if by_name else 0,
        "net_name": plan.net_name,
        "iteration": "all" if plan.mode.files_selected and plan.layout_facts.by_model else str(plan.steps),
        "saved_data": "tensor",
        "input_output": io,
        "kernels": [pattern.text for pattern in plan.kernels] if by_name else [],
        "support_device": sorted(plan.devices) if plan.devices is not None else _EVERY_DEVICE,
    }
    return {_COMMON: common, "e2e_dump_settings": {"enable": True, "trans_flag": plan.trans_flag}}
