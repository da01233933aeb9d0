"""What a capture tells an adapter beside its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from opdump.adapters.program_marks import ModelNames, ProgramMarks
from opdump.plan import DumpPlan
from opdump.recorder import Reader, Recorder

Steps = Literal["auto", "manual"]


class DumpComplete(BaseException):
    """Raised in the program's own thread once the last wanted step is on disk (`stop_after_dump`).

    It is no Exception, so that a program's `except Exception` does not swallow it; `capture` lets it end the block.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to capture, beside what."""

    rank_id: int = 0
    eager: bool = False
    stop_after_dump: bool = False
    steps: Steps = "auto"
    marks: ProgramMarks = field(default_factory=ProgramMarks)
    """What `set_dump` has marked so far, and marks while the capture runs."""
    model_names: ModelNames = field(default_factory=ModelNames)
    """Names that the program has given to its models so far, and gives while the capture runs."""
    watch: Mapping[str, Any] = field(default_factory=dict)
    """Tensors of the program to watch from the start, by name (watch mode)."""


class StepController(Protocol):
    """The half of an attached adapter that a program may drive."""

    @property
    def step(self) -> int:
        """The iteration that the program is in."""

    def manual_step(self) -> None:
        """Ends the current iteration; from the first call on nothing else ends one."""


@runtime_checkable
class SupportsWatch(Protocol):
    """A clock of an adapter that watches memory."""

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watches the outputs of operators by their names, and tensors of the program, from now on."""


@runtime_checkable
class SupportsMarks(Protocol):
    """A clock of an adapter that looks at marks."""

    def marked(self, target: Any) -> None:
        """`set_dump` has just marked `target`, while the program runs."""

    def named(self, model: Any, name: str) -> None:
        """`name_model` has just named `model`, while the program runs."""


@runtime_checkable
class SupportsForks(Protocol):
    """A clock of an adapter that can leave a forked process."""

    def abandon(self) -> str:
        """Takes everything out of a process that inherited the capture of its parent; nothing is filed.

        Returns why this process cannot be captured on its own; nothing where it can.
        """


@runtime_checkable
class SupportsGroups(Protocol):
    """An adapter of a framework with process groups."""

    @property
    def group_rank(self) -> int | None:
        """The rank of this process in its group; None where it is in none."""


@runtime_checkable
class SupportsOwnLayout(Protocol):
    """An adapter of a framework that dumps by itself, in a layout of its own."""

    @property
    def own_layout(self) -> str:
        """The layout of plans that leave it open."""


@runtime_checkable
class SupportsCaptureTime(Protocol):
    """An adapter that can tell the time of its capture from that of the program."""

    @property
    def measures_capture(self) -> bool:
        """Whether it can: then it is what `Recorder.clock` measures."""


class Runtime(Protocol):
    """What runs the operators, as a recording asks for it."""

    @property
    def framework(self) -> str:
        """Name of the package."""

    @property
    def framework_version(self) -> str: ...

    @property
    def device_target(self) -> str:
        """The kind of device that operators run on: CPU, GPU."""

    def reader(self, plan: DumpPlan) -> Reader:
        """Looks at the framework's tensors as the plan wants."""


class Adapter(Runtime, Protocol):
    """Connects a framework to a recorder."""

    def attach(self, recorder: Recorder, settings: Settings) -> AbstractContextManager[StepController]:
        """Captures while the context is open."""
