"""Typical programs of TensorFlow 1 and 2: each runs plain and under capture, and the answers must be the same bits.

Prints a line of JSON for each program and mode.
usage: run_tf_real_programs.py function|session [program...]
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, name-defined"

from __future__ import annotations

import importlib
import json
import sys
import traceback
from typing import Any

import keras
import tensorflow as tf

from opdump.plan import StepSet
from tests.tensorflow.functions.recording import recorded as recorded_functions
from tests.tensorflow.sessions.recording import recorded as recorded_sessions
from tests.tensorflow.sessions.recording import same

v1 = tf.compat.v1
FILES = {"function": ("of_keras", "of_functions"), "session": ("of_sessions",)}
MODES: dict[str, dict[str, Any]] = {
    "statistics": {"saved_data": "statistic"},
    "full": {"saved_data": "full", "steps": "1|2"},
    "overflow": {"captures": "overflow"},
}


def programs(kind):
    """The functions in the files of a kind, by name: each is a program."""
    found: dict[str, Any] = {}
    for file in FILES[kind]:
        module = importlib.import_module(f"tests.parity.tf_real_programs.{file}")
        own = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
        found |= {each.__name__: each for each in own if not each.__name__.startswith("_")}
    return found


def run(function, mode, kind):
    keras.utils.set_random_seed(5)
    if mode is None:
        return function(), 0
    if kind == "function":
        with recorded_functions(**mode) as found:
            answer = function()
        return answer, len(found.writer.tensors)
    options = dict(mode)
    steps = options.pop("steps", None)
    with recorded_sessions(None if steps is None else StepSet.parse(steps), **options) as sessions:
        answer = function()
    return answer, 0 if options.get("captures") else len(sessions.ops())


def main(kind, wanted):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    if kind == "session":
        v1.disable_eager_execution()
        MODES["streams"] = {"streams": True}
    for name, function in programs(kind).items():
        if wanted and name not in wanted:
            continue
        line: dict[str, Any] = {"program": name}
        try:
            v1.reset_default_graph()
            plain, _ = run(function, None, kind)
            v1.reset_default_graph()
            line["again"] = same(plain, run(function, None, kind)[0])
            for title, mode in MODES.items():
                v1.reset_default_graph()
                answer, tensors = run(function, mode, kind)
                line[title] = {"same": same(plain, answer), "tensors": tensors}
        except Exception:  # noqa: BLE001  one failing program must not hide the others
            line["failed"] = traceback.format_exc()
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
