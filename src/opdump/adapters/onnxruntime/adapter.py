"""Captures the programs of ONNX Runtime: the runs of every `InferenceSession`.

with ADAPTER.attach(recorder, settings) as clock:
    session = onnxruntime.InferenceSession("model.onnx")
    session.run(None, {"x": array})

ONNX Runtime is not imported here: it reads its settings during the import, and the program may set them before.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opdump.adapters.base import Settings, StepController, open_once_imported
from opdump.adapters.host import NumpyReader
from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.interception import ProgramSessions

if importlib.util.find_spec("onnxruntime") is None:
    raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

FRAMEWORK = "ONNX Runtime"


class OnnxruntimeAdapter:
    """Captures programs of ONNX Runtime, also beside another framework."""

    framework = "onnxruntime"
    device_target = "CPU"

    @property
    def framework_version(self) -> str:
        return importlib.metadata.version("onnxruntime")

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader for what the plan records of a tensor."""
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[OnnxruntimeSteps]:
        """Capture while the block runs, and file everything at its end. Raises ConfigError for a plan that selects by marks."""
        if recorder.plan.selection == "marked":
            raise ConfigError(
                'dump_mode 2 and set_dump are not available for ONNX Runtime; select operators by name: dump_mode 1 with "kernels"'
            )
        with open_once_imported("onnxruntime", OnnxruntimeSteps(recorder, settings)) as steps:
            yield steps

    @contextmanager
    def attach_beside(self, recorder: Recorder, settings: Settings, steps: StepController) -> Iterator[None]:
        """Capture in the steps of another framework while the block runs."""
        plan = recorder.plan
        if plan.selection == "marked" or plan.mode.watches:
            yield  # both select parts of the other framework
            return
        with open_once_imported("onnxruntime", OnnxruntimeSteps(recorder, settings, steps)):
            yield


class OnnxruntimeSteps:
    """The steps of a program, which may not have imported ONNX Runtime yet. `beside` are the steps of the framework that ends them, if any."""

    def __init__(self, recorder: Recorder, settings: Settings, beside: StepController | None = None) -> None:
        self._recorder = recorder
        self._settings = settings
        self._beside = beside
        self._ended = 0
        """The number of steps that `manual_step` ended before ONNX Runtime was imported."""
        self._sessions: ProgramSessions | None = None
        self._close: Callable[[], None] = lambda: None

    @property
    def step(self) -> int:
        if self._sessions is not None:
            return self._sessions.step
        return self._recorder.plan.initial_iteration + self._ended

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        if self._sessions is None:
            self._ended += 1
        else:
            self._sessions.manual_step()

    def abandon(self) -> str:
        """Leave a forked process, in which the threads of existing sessions are missing."""
        self._recorder.abandon()
        if self._sessions is None:
            return ""
        self._sessions.abandon()
        return "they were forked after ONNX Runtime was imported, and its sessions do not run in forked processes"

    def open(self) -> None:
        """Intercept sessions from now on; ONNX Runtime has been imported."""
        around = self._recorder.circumstances
        if self._beside is None:
            around.framework = FRAMEWORK
        if importlib.util.find_spec("onnx") is None:
            reason = (
                "ONNX models need the package onnx to be recorded, which is not installed here; run: pip install onnx"
            )
            if self._beside is None:
                around.unable = reason
            else:
                self._recorder.warnings.append(reason)
            return
        from opdump.adapters.onnxruntime.interception import ProgramSessions

        manual = self._settings.steps == "manual" or bool(self._ended)
        self._sessions = sessions = ProgramSessions(
            self._recorder, self._settings, first=self.step, manual=manual, beside=self._beside
        )
        sessions.open()
        self._close = sessions.close

    def close(self) -> None:
        """End the capture and file everything."""
        self._close()


ADAPTER = OnnxruntimeAdapter()
