"""The interfaces of an adapter, the settings of a capture beside its plan, and the attachment to a framework that is imported later."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from opdump.adapters.program_marks import ModelNames, ProgramMarks
from opdump.interpreter.imports import after_import
from opdump.plan import DumpPlan
from opdump.recorder import Reader, Recorder

Steps = Literal["auto", "manual"]


class DumpComplete(BaseException):
    """Raised in the program's thread when the last selected step is on disk (`stop_after_dump`).

    It is not an `Exception`, so that `except Exception` in a program does not catch it. It ends the block of `capture`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to capture. The plan says what to capture."""

    rank_id: int = 0
    eager: bool = False
    stop_after_dump: bool = False
    steps: Steps = "auto"
    marks: ProgramMarks = field(default_factory=ProgramMarks)
    """The marks of `set_dump`, including those made while the capture runs."""
    model_names: ModelNames = field(default_factory=ModelNames)
    """The names of models in the program, including those given while the capture runs."""
    watch: Mapping[str, Any] = field(default_factory=dict)
    """Tensors of the program to watch from the start, by name (watch mode)."""


class StepController(Protocol):
    """The part of an attached adapter that a program can control: its steps."""

    @property
    def step(self) -> int:
        """The number of the current step."""

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""


@runtime_checkable
class SupportsWatch(Protocol):
    """A step controller that can watch memory."""

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watch the outputs of operators, by name, and tensors of the program, from now on."""


@runtime_checkable
class SupportsMarks(Protocol):
    """A step controller that handles marks and names that are set while the program runs."""

    def marked(self, target: Any) -> None:
        """`set_dump` has marked `target`."""

    def named(self, model: Any, name: str) -> None:
        """`name_model` has named `model`."""


@runtime_checkable
class SupportsForks(Protocol):
    """A step controller that can leave a forked process."""

    def abandon(self) -> str:
        """Remove all hooks in a process that inherited the capture of its parent. Nothing is filed.

        Returns why this process cannot be captured separately; empty if it can.
        """


@runtime_checkable
class SupportsOrder(Protocol):
    """A step controller that numbers the operators of its steps, including those of another framework."""

    def next_order(self) -> int:
        """The number of an operator of another framework that runs now."""


@runtime_checkable
class SupportsGroups(Protocol):
    """An adapter of a framework with process groups."""

    @property
    def group_rank(self) -> int | None:
        """The rank of this process in its group; None if it is not in a group."""


@runtime_checkable
class SupportsOwnLayout(Protocol):
    """An adapter of a framework with its own dump and layout."""

    @property
    def own_layout(self) -> str:
        """The layout if a plan names none."""


@runtime_checkable
class SupportsCaptureTime(Protocol):
    """An adapter that can separate the time of the capture from the time of the program."""

    @property
    def measures_capture(self) -> bool:
        """Whether it can. If so, `Recorder.clock` measures the time of the capture."""


class Runtime(Protocol):
    """The facts about a framework that a recording needs."""

    @property
    def framework(self) -> str:
        """Name of the package."""

    @property
    def framework_version(self) -> str: ...

    @property
    def device_target(self) -> str:
        """The kind of device on which operators run: CPU, GPU."""

    def reader(self, plan: DumpPlan) -> Reader:
        """A reader of the framework's tensors for this plan."""


class Adapter(Runtime, Protocol):
    """Connects a framework to a recorder."""

    def attach(self, recorder: Recorder, settings: Settings) -> AbstractContextManager[StepController]:
        """Capture while the context is open."""


@runtime_checkable
class SupportsBeside(Protocol):
    """An adapter that can also capture in the steps of another framework."""

    def attach_beside(
        self, recorder: Recorder, settings: Settings, steps: StepController
    ) -> AbstractContextManager[object]:
        """Capture while the context is open; `steps` belongs to the other adapter."""


# Attaches an adapter to a framework that the program may not have imported yet. An import by opdump could change what the program does.


class Attached(Protocol):
    """Observes a framework after its import."""

    def open(self) -> None: ...
    def close(self) -> None: ...


_Attached = TypeVar("_Attached", bound=Attached)


@contextmanager
def open_once_imported(framework: str, attached: _Attached) -> Iterator[_Attached]:
    """Open `attached` at once if the framework is imported, otherwise when the program imports it in the block. Always close it at the end."""
    with ExitStack() as stack:
        stack.callback(attached.close)
        if framework in sys.modules:
            attached.open()
        else:
            stack.callback(after_import(framework, lambda _: attached.open()))
        yield attached
