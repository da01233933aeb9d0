"""Captures MindSpore programs.

with ADAPTER.attach(recorder, settings) as clock:
    train()

Compiled code is dumped by MindSpore itself, into a directory of this process, and every execution of a graph goes to the recorder from
there. What runs operator by operator is seen as it is dispatched (`pynative`). MindSpore is not imported here: that takes seconds, and a program may not get that far.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opdump.adapters.base import Settings
from opdump.adapters.host import NumpyReader
from opdump.adapters.late_import import open_once_imported
from opdump.adapters.mindspore.graphs import GraphPieces
from opdump.adapters.mindspore.pynative.capture import PyNative
from opdump.errors import CaptureStateError
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

if importlib.util.find_spec("mindspore") is None:
    raise ModuleNotFoundError("No module named 'mindspore'", name="mindspore")


class MindsporeAdapter:
    """Captures MindSpore programs."""

    framework = "mindspore"
    own_layout = "mindspore-2.10"
    """The layout of its own dumps."""

    @property
    def framework_version(self) -> str:
        return importlib.metadata.version("mindspore")

    @property
    def device_target(self) -> str:
        """What the program chose; CPU before it has."""
        context = sys.modules.get("mindspore.context")
        return "CPU" if context is None else str(context.get_context("device_target")).upper()

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader that takes what the plan wants of a tensor."""
        if plan.mode.watches:  # a change is found by digests
            return NumpyReader(statistics=True, elements=plan.saves_tensors, names=("md5",), sample=plan.sample_taken)
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[MindsporeSteps]:
        """Captures while the block runs; what was begun is filed at its end."""
        with open_once_imported("mindspore", MindsporeSteps(recorder, settings)) as steps:
            yield steps


class MindsporeSteps:
    """The steps of a program, which may not have imported MindSpore yet."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._pynative = PyNative(recorder, settings)
        self._process = os.getpid()
        self._close: Callable[[], None] = lambda: None

    @property
    def step(self) -> int:
        return self._pynative.step

    def manual_step(self) -> None:
        """Ends the current iteration; from the first call on nothing else ends one.

        MindSpore counts the iterations of compiled code itself.
        """
        self._pynative.manual_step()

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watches operators by name and tensors of the program from now on. Raises CaptureStateError in another mode."""
        if not self._recorder.plan.mode.watches:
            raise CaptureStateError(
                f"the running capture has the mode {self._recorder.plan.captures!r} and watches nothing; begin it with "
                "opdump.capture(watch=[...], path=...)"
            )
        self._pynative.watch(nodes, tensors)

    def marked(self, target: Any) -> None:
        """`set_dump` has just marked `target`: it counts from the next operator, or the next compilation."""

    def named(self, model: Any, name: str) -> None:
        """`name_model` has just named `model`: warns of its executions that are missing."""
        if self._pynative.models is not None:
            self._pynative.models.renamed(model, name)

    def open(self) -> None:
        """MindSpore is there: what it runs is seen from now on."""
        self._recorder.circumstances.framework = "MindSpore"
        # MindSpore's own dump has what an operator of a graph read and wrote, and not what watched memory holds after it.
        watches = self._recorder.plan.mode.watches
        graphs = None if watches else GraphPieces(self._recorder, self._settings, self._pynative)

        def close() -> None:
            if graphs is not None:
                graphs.close()
            self._pynative.stop()

        self._close = close
        if graphs is not None:
            graphs.open()
        self._pynative.start()

    def close(self) -> None:
        """Ends the capture; what was begun is filed. In a forked process it is the parent's."""
        if os.getpid() == self._process:
            self._close()


ADAPTER = MindsporeAdapter()
