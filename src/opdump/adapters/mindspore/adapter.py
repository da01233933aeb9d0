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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opdump.adapters.base import Settings
from opdump.adapters.host import NumpyReader
from opdump.adapters.late_import import open_once_imported
from opdump.adapters.mindspore.graphs import GraphPieces
from opdump.adapters.mindspore.pynative.capture import PyNative
from opdump.errors import ConfigError
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
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[MindsporeSteps]:
        """Captures while the block runs; what was begun is filed at its end.

        Raises ConfigError for what a plan may ask of other frameworks alone.
        """
        _check(recorder.plan)
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

    def open(self) -> None:
        """MindSpore is there: what it runs is seen from now on."""
        self._recorder.circumstances.framework = "MindSpore"
        graphs = GraphPieces(
            self._recorder, self._settings, self._pynative.next_order, lambda: self._pynative.is_wanted
        )

        def close() -> None:
            graphs.close()
            self._pynative.stop()

        self._close = close
        graphs.open()
        self._pynative.start()

    def close(self) -> None:
        """Ends the capture; what was begun is filed. In a forked process it is the parent's."""
        if os.getpid() == self._process:
            self._close()


def _check(plan: DumpPlan) -> None:
    if plan.mode.watches:
        raise ConfigError(
            f"the mode {plan.captures!r} is there for PyTorch and ONNX Runtime alone; on MindSpore capture data, overflows or exceptions"
        )


ADAPTER = MindsporeAdapter()
