"""Captures MindSpore programs.

with ADAPTER.attach(recorder, settings) as clock:
    train()

MindSpore itself dumps compiled code into a directory of this process, from which each execution of a graph is passed to the recorder.
Operators that run one by one are intercepted when they are dispatched (`pynative`). MindSpore is not imported here: this takes seconds,
and the program may end before it needs MindSpore.
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

from opdump.adapters.base import Settings, open_once_imported
from opdump.adapters.host import NumpyReader
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
    """The layout of MindSpore's own dumps."""

    @property
    def framework_version(self) -> str:
        return importlib.metadata.version("mindspore")

    @property
    def device_target(self) -> str:
        """The device that the program chose; CPU before MindSpore is imported."""
        context = sys.modules.get("mindspore.context")
        return "CPU" if context is None else str(context.get_context("device_target")).upper()

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader for what the plan records of a tensor."""
        if plan.mode.watches:  # changes are found by digests
            return NumpyReader(statistics=True, elements=plan.saves_tensors, names=("md5",), sample=plan.sample_taken)
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[MindsporeSteps]:
        """Capture while the block runs, and file everything at its end."""
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
        """End the current step. After the first call, steps end only here.

        MindSpore counts the iterations of compiled code itself.
        """
        self._pynative.manual_step()

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watch operators by name, and tensors of the program, from now on. Raises CaptureStateError in other modes."""
        if not self._recorder.plan.mode.watches:
            raise CaptureStateError(
                f"the running capture has the mode {self._recorder.plan.captures!r}, which cannot watch; start it with "
                "opdump.capture(watch=[...], path=...)"
            )
        self._pynative.watch(nodes, tensors)

    def marked(self, target: Any) -> None:
        """`set_dump` has marked `target`. Nothing to do: the mark takes effect at the next operator or compilation."""

    def named(self, model: Any, name: str) -> None:
        """`name_model` has named `model`: warn if earlier executions are missing."""
        if self._pynative.models is not None:
            self._pynative.models.renamed(model, name)

    def open(self) -> None:
        """Intercept operators from now on; MindSpore has been imported."""
        self._recorder.circumstances.framework = "MindSpore"
        # MindSpore's own dump has the inputs and outputs of an operator, but not the content of watched memory after it.
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
        """End the capture and file everything. Does nothing in a forked process, where the capture belongs to the parent."""
        if os.getpid() == self._process:
            self._close()


ADAPTER = MindsporeAdapter()
