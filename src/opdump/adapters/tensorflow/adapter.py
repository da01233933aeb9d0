"""Captures the operators of TensorFlow in the eager program, in traced functions (tf.function, Keras) and in sessions.

with ADAPTER.attach(recorder, settings) as clock:
    train()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tensorflow.python.eager import context as eager_context

from opdump.adapters.base import Settings
from opdump.adapters.host import NumpyReader
from opdump.adapters.tensorflow.capture import FRAMEWORK, FRAMEWORK_VERSION, Capture, device_target
from opdump.adapters.tensorflow.functions.eager import EagerCapture
from opdump.adapters.tensorflow.functions.functions import FunctionCapture
from opdump.adapters.tensorflow.functions.steps import ProgramSteps, eager_steps
from opdump.adapters.tensorflow.sessions.graph_files import GraphFiles
from opdump.adapters.tensorflow.sessions.session import Interception
from opdump.adapters.tensorflow.stacks import KerasModels, program_tracebacks
from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.recorder import Recorder


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
        """A reader that returns the parts of a tensor that the plan needs."""
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[ProgramSteps]:
        """Capture while the block runs. Recordings are written at its end.

        Raises ConfigError for settings that only apply to other frameworks.
        """
        _check(recorder.plan)
        rank = settings.rank_id
        capture = Capture(recorder, rank_id=rank, device_id=rank, stop_after_dump=settings.stop_after_dump)
        if recorder.plan.layout_facts.by_model:
            capture.write_graph = GraphFiles(capture, os.environ)
        keras_models = KerasModels(settings.model_names)
        eager = EagerCapture(capture)
        steps = ProgramSteps(capture, manual=settings.steps == "manual", changed=eager.step_changed)
        functions = FunctionCapture(capture, steps, eager.function_called, lambda: keras_models.names)
        with ExitStack() as filing, ExitStack() as stack:
            filing.callback(capture.close)
            filing.callback(steps.close)
            steps.when_forked = lambda: _leave_to_parent(capture, functions, eager, filing, stack)
            stack.enter_context(program_tracebacks())
            stack.enter_context(keras_models.watched())
            stack.callback(functions.close)
            functions.open()
            stack.enter_context(eager_steps(steps, functions.updates.optimizer_traced))
            sessions = Interception(lambda _: capture, lambda _: None)
            sessions.put_in()
            stack.callback(sessions.take_out)
            stack.callback(eager.close)  # it examines all objects of the program, which Ctrl-C may interrupt
            eager.open(steps)
            yield steps


def _leave_to_parent(
    capture: Capture, functions: FunctionCapture, eager: EagerCapture, filing: ExitStack, stack: ExitStack
) -> str:
    """In a forked process: remove the hooks from TensorFlow, without calls to its runtime, which may have lost its threads."""
    filing.pop_all()
    capture.abandon()
    functions.abandon()
    eager.abandon()
    stack.close()
    context = eager_context.context_safe()
    if capture.has_sessions or (context is not None and context._initialized):
        return "TensorFlow was already initialised when the process was forked, and its threads do not exist in the child; fork earlier, or start processes by spawn"
    return ""


def _check(plan: DumpPlan) -> None:
    if not plan.mode.reads_operators:
        raise ConfigError(f"the mode {plan.captures!r} is not supported on TensorFlow; capture data or overflows")
    if plan.selection == "marked":
        raise ConfigError(
            "dump_mode 2 and set_dump mark modules and functions of PyTorch; on TensorFlow, select operators by name: "
            'dump_mode 1 with "kernels"'
        )


ADAPTER = TensorflowAdapter()
