"""Ends an evaluation, and files its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class StopsAfter(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc] # TensorFlow has no types here
    """Ends an evaluation after so many runs; None: with the input. It adds no operator to the graph."""

    def __init__(self, runs: int | None) -> None:
        self._runs = runs
        self._done = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._done += 1
        if self._runs is not None:
            v1.logging.info("Evaluation [%d/%d]", self._done, self._runs)
            if self._done >= self._runs:
                run_context.request_stop()


def evaluation_summary(directory: str, values: Mapping[str, Any], checkpoint: str | None) -> None:
    """Files the results of an evaluation for TensorBoard, and logs them. Results that are no numbers are left out of the file."""
    step = int(values["global_step"])
    v1.logging.info(
        "Saving dict for global step %d: %s",
        step,
        ", ".join(f"{name} = {value!s}" for name, value in sorted(values.items())),
    )
    summary = v1.Summary()
    for name, value in values.items():
        if name == "global_step":
            continue
        if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            summary.value.add(tag=name, simple_value=float(value))
        else:
            v1.logging.warning("Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int.", name)
    writer = v1.summary.FileWriter(directory)
    writer.add_summary(summary, step)
    writer.close()
    if checkpoint is not None:
        v1.logging.info("Saving 'checkpoint_path' summary for global step %d: %s", step, checkpoint)
