"""The processes of one run: the role and the report of each, and the state that they share.

The state is a directory outside of the dump:

    family.json            what is captured, and how
    rank_10000             this number is taken by the process whose ID is in the file
    process_4711_3f.json   the note of a process about what it did
    ended                  the first process has ended its capture while others were still running
    kept                   the process named in this file will read the notes once more
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NoReturn

from opdump.interpreter.frames import PACKAGE
from opdump.interpreter.leftovers import ancestors, is_dead, named_process, this_process
from opdump.interpreter.process_starts import FAMILY_VARIABLE, START_VARIABLE
from opdump.plan import DumpPlan
from opdump.sink.outside import is_of_dead_process, temporary_directory
from opdump.verdict import Verdict

# The role of a process: one of the program's own, or one that only serves it.

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


# The report of a child process under capture, read from its note.

End = Literal["ended", "lost", "running", "not captured"]
_FIGURES: Final = ("executed", "captured", "tensors", "files", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """One process. `end` is its state when the first process ended: `lost` means that it ended without a report (killed), `not captured` that it was
    not recorded.
    """

    process: int
    end: End
    rank_id: int | None = None
    """None if it ran no operator in a selected step and therefore has no directory."""
    executed: int = 0
    captured: int = 0
    tensors: int = 0
    files: int = 0
    bytes: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    tensors_skipped: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    last_step: int | None = None
    """The last step that it wrote, as far as is known; None if it wrote none."""
    reason: str = ""
    failure: str = ""
    """Why its part of the dump is incomplete; empty if it is complete."""
    verdict: Verdict | None = None
    """The first finding in the process; None if it did not end regularly."""

    @property
    def left_data(self) -> bool:
        return self.rank_id is not None

    @classmethod
    def of_note(cls, note: Mapping[str, Any], *, alive: bool) -> ChildReport:
        """Return the report of a note. `alive`: the process still exists."""
        end: End = note["end"] if note.get("end") else ("running" if alive else "lost")
        return cls(
            process=int(note["process"]),
            end=end,
            rank_id=note.get("rank_id"),
            skipped=note.get("skipped", {}),
            tensors_skipped=note.get("tensors_skipped", {}),
            warnings=tuple(note.get("warnings", ())),
            last_step=note.get("last_step"),
            reason=note.get("reason", ""),
            failure=note.get("failure", ""),
            verdict=Verdict.of_json(note["verdict"]) if note.get("verdict") else None,
            **{name: int(note.get(name, 0)) for name in _FIGURES},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "process": self.process,
            "end": self.end,
            "rank": self.rank_id,
            "last_step": self.last_step,
            **{name: getattr(self, name) for name in _FIGURES},
            "skipped": dict(self.skipped),
            "tensors_skipped": dict(self.tensors_skipped),
            "verdict": None if self.verdict is None else self.verdict.as_json(),
        }


# The shared state of the processes of one run: a directory outside of the dump that exists as long as the run.

__all__ = ["FAMILY_VARIABLE", "Family"]
_LOG = logging.getLogger("opdump")
_NOWHERE: Final = Path(os.devnull, "nowhere")
_FACTS: Final = "family.json"
_ENDED: Final = "ended"
_KEPT: Final = "kept"
_ASKED: Final = "asked"
_OWN_NUMBERS: Final = 10_000
"""Processes that are not a rank of a group are numbered from here, beyond the ranks of any likely process group."""
_NUMBERS_OF_NOBODY: Final = 100_000_000
"""If the directory is gone, numbers are this plus the process ID, which is unique."""


def _started_before() -> int:
    """Return how many `multiprocessing` processes the first process started before this one; 0 for other processes."""
    processes = sys.modules.get("multiprocessing.process")
    identity: tuple[int, ...] = () if processes is None else getattr(processes.current_process(), "_identity", ())
    return identity[0] - 1 if len(identity) == 1 and identity[0] < _OWN_NUMBERS else 0


@dataclass(frozen=True, slots=True)
class Family:
    """A run of several processes. Failures to write notes and claims are ignored, because then the run has ended."""

    directory: Path
    plan: DumpPlan
    facts: Mapping[str, Any]

    @classmethod
    def begin(cls, plan: DumpPlan, facts: Mapping[str, Any]) -> Family:
        """Create the directory of a new family, accessible only to its owner. If that fails, children are not captured."""
        try:
            family = cls(temporary_directory("family", is_in_use=_is_in_use), plan, facts)
            family._write_facts()
        except OSError as error:
            _LOG.warning("processes that the program starts are not captured: no temporary directory (%s)", error)
            return cls(_NOWHERE, plan, facts)
        return family

    def begun_again(self, plan: DumpPlan, facts: Mapping[str, Any]) -> Family:
        """Return the same family with updated facts about what is captured."""
        family = Family(self.directory, plan, facts)
        if family.is_there:
            with suppress(OSError):
                family._write_facts()
        return family

    @property
    def is_there(self) -> bool:
        """Whether other processes can find the family."""
        return self.directory != _NOWHERE

    @classmethod
    def named(cls, directory: str) -> Family | None:
        """Return the family in the directory that the environment names, or None if the run has ended or another user owns the directory."""
        path = Path(directory)
        try:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return None
            read = json.loads((path / _FACTS).read_text())
        except (OSError, ValueError):
            return None
        plan = DumpPlan.from_json(read["plan"])
        plan = replace(plan, config_text=read["config_text"], warnings=tuple(read["warnings"]))
        return cls(path, plan, read["facts"])

    @classmethod
    def of_ancestors(cls, asked: str) -> str:
        """Return the family directory of an ancestor process that was started with the same OPDUMP_START, or an empty string if there is none. It
        lets a process find its run even if its environment was prepared before the run began.
        """
        with suppress(OSError):
            place = Path(tempfile.gettempdir())
            names = [name for name in os.listdir(place) if name.startswith("opdump-family--")]
            for process in map(named_process, ancestors() if names else ()):
                for directory in [place / name for name in names if name.startswith(f"opdump-family--{process}--")]:
                    family = cls.named(str(directory))
                    if family is not None and family.facts.get(_ASKED) == asked and not (directory / _ENDED).exists():
                        return str(directory)
        return ""

    def claim(self, rank: int) -> bool:
        """Take a number. Return False if another process has it."""
        try:
            with (self.directory / f"rank_{rank}").open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def is_of_ancestor(self, rank: int) -> bool:
        """Return whether an ancestor of this process has a number. If so, the variable with that number was only inherited."""
        try:
            holder = int((self.directory / f"rank_{rank}").read_text())
        except (OSError, ValueError):
            return False
        return holder in ancestors()

    def own_number(self) -> int:
        """Take a number for a process that is not a rank of a process group. Ranks of one launcher use separate ranges.

        Processes of `multiprocessing` are numbered in the order in which they were started, so that each has the same number in every run.
        """
        if not self.directory.is_dir():
            return _NUMBERS_OF_NOBODY + os.getpid()
        rank = _OWN_NUMBERS * (int(self.facts.get("rank", 0)) + 1) + _started_before()
        while not self.claim(rank):
            rank += 1
        return rank

    def note(self, token: str, note: Mapping[str, Any]) -> None:
        """Write or replace the note of this process."""
        with suppress(OSError):
            self._write(
                f"process_{os.getpid()}_{token}.json", {"process": os.getpid(), "owner": this_process(), **note}
            )

    def take_back(self, token: str) -> None:
        """Remove a note of this process."""
        with suppress(OSError):
            os.unlink(self.directory / f"process_{os.getpid()}_{token}.json")

    def reports(self) -> tuple[ChildReport, ...]:
        """Return the reports of the children so far, sorted by rank, those without data last. Raises OSError if the directory cannot be read."""
        found = _reports_in(self.directory) if self.is_there else []
        return tuple(sorted(found, key=lambda one: (one.rank_id is None, one.rank_id or 0, one.process)))

    def end(self) -> None:
        """Remove the directory. If children are still running and need their numbers, the last child removes it."""
        if not self.is_there:
            return
        with suppress(OSError):
            self._write(_ENDED, {})
        if not awaited_processes():
            self.left()

    def keep(self) -> None:
        """Keep the directory until `release`, because this process will read the notes once more."""
        with suppress(OSError):
            (self.directory / _KEPT).write_text(this_process())

    def release(self) -> None:
        """Allow the directory to be removed: this process has read the notes for the last time."""
        with suppress(OSError):
            os.unlink(self.directory / _KEPT)
        self.left()

    def left(self) -> None:
        """Remove the directory if this process was the last one."""
        has_ended = is_of_dead_process(self.directory) or (self.directory / _ENDED).exists()
        if has_ended and not _is_in_use(self.directory):
            shutil.rmtree(self.directory, ignore_errors=True)

    def _write_facts(self) -> None:
        asked = os.environ.get(START_VARIABLE, "").strip()
        said = {"config_text": self.plan.config_text, "warnings": self.plan.warnings}
        self._write(_FACTS, {"plan": self.plan.to_json(), **said, "facts": {**self.facts, _ASKED: asked}})

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        temporary = self.directory / f".{name}"
        temporary.write_text(json.dumps(content))
        temporary.replace(self.directory / name)


def _reports_in(directory: Path) -> list[ChildReport]:
    found = []
    for path in [directory / name for name in os.listdir(directory) if name.startswith("process_")]:
        with suppress(OSError, ValueError):
            note = json.loads(path.read_text())
            found.append(ChildReport.of_note(note, alive=not is_dead(note["owner"])))
    return found


def _is_in_use(directory: Path) -> bool:
    """Return whether processes of this run are still working."""
    try:
        return _is_kept(directory) or any(child.end == "running" for child in _reports_in(directory))
    except OSError:
        return False


def _is_kept(directory: Path) -> bool:
    try:
        return not is_dead((directory / _KEPT).read_text())
    except OSError:
        return False


def family_facts(*, framework: str, eager: bool, steps: str, rank: int, captured: bool) -> dict[str, Any]:
    """Return how children are captured. `framework` "": the one that they import. `captured` False: children are only counted."""
    return {
        "framework": framework,
        "eager": eager,
        "steps": steps,
        "rank": rank,
        "launched_as": os.environ.get("RANK", ""),
        "captured": captured,
    }


# Counts what all processes of a run have written, for a limit that they share (`max_disk`).

_PREFIX: Final = "bytes_"
_LOOK_EACH_SECONDS: Final = 0.5


class SharedBytes:
    """Publishes the bytes of this process in the directory of the family and reads those of the others, at most twice per second."""

    def __init__(
        self, family: Family, token: str, own: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`own` returns the bytes of this process. `token` distinguishes it from another process with the same ID."""
        self._directory = family.directory if family.is_there else None
        self._name = f"{_PREFIX}{os.getpid()}_{token}"
        self._own = own
        self._now = now
        self._next = 0.0
        self._others = 0

    def of_others(self) -> int:
        """Return the bytes that the other processes had written at the last exchange."""
        if self._directory is not None and self._now() >= self._next:
            self._next = self._now() + _LOOK_EACH_SECONDS
            self._exchange(self._directory)
        return self._others

    def _exchange(self, directory: Path) -> None:
        with suppress(OSError, ValueError):  # the run has ended, or another process is writing its file
            temporary = directory / f".{self._name}"
            temporary.write_text(str(self._own()))
            temporary.replace(directory / self._name)
            self._others = sum(
                int((directory / name).read_text())
                for name in os.listdir(directory)
                if name.startswith(_PREFIX) and name != self._name
            )


# Detects when the work of a child process begins and ends, which differs for each kind of child.

_MOMENT: Final = 0.02
_MOST_TRIES: Final = 500

_AROUND: Final = tuple(
    os.path.join(PACKAGE, part)
    for part in (
        "__main__.py",
        "commands",
        "startup",
        os.path.join("capturing", "family.py"),
        os.path.join("capturing", "rank_assignment.py"),
        os.path.join("adapters", "torch", "training.py"),
    )
)
"""Code of opdump that calls the program and holds no lock meanwhile."""


def when_it_has_its_work(call: Callable[[], object]) -> None:
    """Call a function in a forked process as soon as the process begins its work: after the start-up code of multiprocessing, otherwise now.

    A process that is about to become another program (`preexec_fn` of subprocess) is left alone.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith("subprocess.py") and frame.f_code.co_name == "_execute_child":
            return
        if file.endswith(("popen_fork.py", "forkserver.py")):
            after_bootstrap(call)
            return
        frame = frame.f_back
    call()


def after_bootstrap(call: Callable[[], object]) -> None:
    """Call a function in a multiprocessing process just before its work, in this process or in those forked from it."""
    from multiprocessing.process import BaseProcess

    base: Any = BaseProcess
    original = base._bootstrap

    def bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
        after_fork = process._after_fork

        def then() -> None:
            # The process knows its work by now, and starts it next.
            del process._after_fork
            after_fork()
            call()

        process._after_fork = then
        base._bootstrap = original
        return original(process, *args, **kwargs)

    base._bootstrap = bootstrap


def call_at_end(call: Callable[[], object]) -> None:
    """Call a function when this process ends: normally, by SIGTERM, or by `os._exit` in a forked process."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        # Such a process leaves by os._exit; finalizers with a priority are called before that.
        util.Finalize(None, call, exitpriority=1000)
    asked_to_end = _call_at_termination(call)

    def at_exit() -> None:
        call()
        if asked_to_end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    atexit.register(at_exit)
    _call_before_exit(call)


def _call_before_exit(call: Callable[[], object]) -> None:
    leave, process = os._exit, os.getpid()

    def leave_in_order(status: int) -> NoReturn:
        if os.getpid() == process and not _within_opdump(sys._getframe()):
            call()
        leave(status)

    os._exit = leave_in_order


def _call_at_termination(call: Callable[[], object]) -> list[int]:
    """Call a function at SIGTERM, with which a process pool ends its workers. A process that handles or ignores the signal itself is left alone.

    Return the list that receives the signal if it comes while the interpreter ends, when no thread can be started any more.
    """
    kept: list[int] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return kept
    process = os.getpid()
    patience = itertools.count()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process and _within_opdump(frame) and next(patience) < _MOST_TRIES:
            # The end might wait for a lock that is held here, or has begun already: try again in a moment.
            try:
                threading.Thread(target=_again, args=(number,), name="opdump-signal", daemon=True).start()
            except RuntimeError:
                kept.append(number)
            return
        signal.signal(number, signal.SIG_IGN)
        if os.getpid() == process and not _within_opdump(frame):
            call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    return kept


def _again(number: int) -> None:
    time.sleep(_MOMENT)
    os.kill(os.getpid(), number)


def _within_opdump(frame: FrameType | None) -> bool:
    """Return whether opdump itself is at work, and not just calling the program."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and not file.startswith(_AROUND):
            return True
        frame = frame.f_back
    return False
