"""Captures JAX programs: compiled functions and single operators.

with ADAPTER.attach(recorder, settings) as clock:
    train()

JAX is not imported here: it reads its settings during the import, and the program may set them before.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opdump.adapters.base import Settings, open_once_imported
from opdump.adapters.host import NumpyReader
from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.recorder import Recorder

if TYPE_CHECKING:
    from opdump.adapters.jax.capture import Capture

if importlib.util.find_spec("jax") is None:
    raise ModuleNotFoundError("No module named 'jax'", name="jax")


class JaxAdapter:
    """Captures JAX programs."""

    framework = "jax"

    @property
    def framework_version(self) -> str:
        return importlib.metadata.version("jax")

    @property
    def device_target(self) -> str:
        """The platform that the program chose; CPU before that. Asking JAX earlier would make the choice for the program."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        if bridge is not None and bridge.backends_are_initialized():
            return str(bridge.get_backend().platform).upper()
        return "CPU"

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader for what the plan records of a tensor."""
        return NumpyReader.of_plan(plan)

    @contextmanager
    def attach(self, recorder: Recorder, settings: Settings) -> Iterator[JaxSteps]:
        """Capture while the block runs, and file everything at its end.

        Raises ConfigError if the plan needs something that JAX does not support.
        """
        _check(recorder.plan)
        with open_once_imported("jax", JaxSteps(recorder, settings)) as steps:
            yield steps


class JaxSteps:
    """The steps of a program, which may not have imported JAX yet."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._ended = 0
        """The number of steps that `manual_step` ended before JAX was imported."""
        self._capture: Capture | None = None
        self._end_step: Callable[[], None] | None = None
        self._close: Callable[[], None] = lambda: None
        self._abandon: Callable[[], None] = lambda: None

    @property
    def step(self) -> int:
        first = self._recorder.plan.initial_iteration + self._ended
        return first if self._capture is None else self._capture.step

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        if self._end_step is None:
            self._ended += 1
        else:
            self._end_step()

    def abandon(self) -> str:
        """Leave a forked process. Returns why it cannot be captured separately; empty if JAX was not imported before the fork."""
        self._abandon()
        self._recorder.abandon()
        return "they were forked, and JAX does not run in forked processes" if self._capture is not None else ""

    def open(self) -> None:
        """Intercept calls from now on; JAX has been imported."""
        pjit = importlib.import_module("jax._src.pjit")
        from opdump.adapters.jax.capture import Capture
        from opdump.adapters.jax.functions import Steps
        from opdump.adapters.jax.interception import Interception, unsupported

        around = self._recorder.circumstances
        around.framework = "JAX"
        lacks = unsupported(pjit)
        if lacks:
            around.unable = (
                f"JAX {importlib.metadata.version('jax')} cannot be captured: {lacks}; JAX 0.6 to 0.10 are supported"
            )
            return
        steps = Steps(
            self._recorder,
            first=self.step,
            manual=self._settings.steps == "manual" or bool(self._ended),
            stop_after_dump=self._settings.stop_after_dump,
        )
        self._capture = capture = Capture(self._recorder, steps, rank_id=self._settings.rank_id)
        interception = Interception(pjit, capture.called, capture.may_hurry)
        was_wanted = steps.is_wanted

        def began() -> None:
            nonlocal was_wanted
            # After a recorded step, calls would stay on the slow path, because JAX asks only once for the data of its fast path. Before one,
            # a call on the fast path would be noticed only after it has begun the step, which is too late.
            if steps.is_wanted or steps.next_is_wanted or was_wanted:
                interception.forget()
            was_wanted = steps.is_wanted

        steps.began = began
        self._end_step = steps.manual_step
        interception.open()
        capture.host_calls.open()

        def close() -> None:
            interception.close()
            capture.host_calls.close()
            capture.close()
            steps.close()

        self._close, self._abandon = close, interception.close

    def close(self) -> None:
        """End the capture and file everything."""
        self._close()


def _check(plan: DumpPlan) -> None:
    if plan.mode.watches:
        raise ConfigError(
            f"the mode {plan.captures!r} is not available for JAX, whose arrays are never overwritten; use another mode"
        )
    if plan.selection == "marked":
        raise ConfigError(
            'dump_mode 2 and set_dump are not available for JAX; select operators by name: dump_mode 1 with "kernels"'
        )


ADAPTER = JaxAdapter()
