"""TensorFlow: what runs in the eager program, in traced functions (tf.function, Keras) and in sessions.

with ADAPTER.attach(recorder, settings) as clock:
    train()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from opdump.adapters.host import NumpyReader
from opdump.adapters.settings import Settings
from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

from .capture import Capture
from .eager import EagerCapture
from .functions import FunctionCapture
from .functions_steps import ProgramSteps
from .graph_files import GraphFiles
from .interception import intercept_sessions
from .keras_steps import optimizer_steps, without_automatic_xla
from .versions import FRAMEWORK, FRAMEWORK_VERSION, device_target


class TensorflowAdapter:
    """Captures TensorFlow programs."""

    framework = FRAMEWORK

    @property
    def framework_version(self) -> str:
        return FRAMEWORK_VERSION

    @property
    def device_target(self) -> str:
        return device_target()

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader that takes what the plan wants of a tensor."""
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[ProgramSteps]:
        """Captures while the block runs; what was begun is filed at its end.

        Raises ConfigError for what a plan or the settings may ask of other frameworks alone.
        """
        _check(recorder.plan, settings)
        capture = Capture(recorder, device_id=settings.rank_id, stop_after_dump=settings.stop_after_dump)
        if recorder.plan.layout == "acl":
            capture.write_graph = GraphFiles(capture, os.environ)
        eager = EagerCapture(capture)
        steps = ProgramSteps(capture, manual=settings.steps == "manual", changed=eager.step_changed)
        functions = FunctionCapture(capture, steps)
        with ExitStack() as stack:
            stack.callback(capture.close)
            stack.callback(steps.close)
            stack.enter_context(without_automatic_xla())
            functions.open()
            stack.callback(functions.close)
            stack.enter_context(optimizer_steps(steps.updated, functions.optimizer_traced))
            stack.enter_context(intercept_sessions(lambda _: capture, lambda _: None))
            eager.open(steps)
            stack.callback(eager.close)
            yield steps


def _check(plan: DumpPlan, settings: Settings) -> None:
    if plan.captures in ("exception", "watch"):
        raise ConfigError(
            f"the mode {plan.captures!r} is there for PyTorch and ONNX Runtime alone; on TensorFlow capture data or overflows"
        )
    if plan.selection == "marked" or settings.marks.modules or settings.marks.functions:
        raise ConfigError(
            "dump_mode 2 and set_dump mark modules and functions of PyTorch; on TensorFlow choose operators by name: "
            'dump_mode 1 with "kernels"'
        )


ADAPTER = TensorflowAdapter()
