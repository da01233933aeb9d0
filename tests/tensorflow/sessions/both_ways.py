"""Runs a session program plain and under capture: the answers must be equal, and values must be those that numpy computes."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.recording import Recorded, recorded, same, v1

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def both(build, runs=3, steps=None, ref=False, **plan):
    """Run a program without and with capture, each in a new graph, and assert equal answers. Returns (recorded, answers)."""

    def program():
        with tf.Graph().as_default(), v1.variable_scope("", use_resource=not ref):
            v1.set_random_seed(7)
            fetches, feed = build()
            with v1.Session() as session:
                session.run(
                    [v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()]
                )
                answers = [session.run(fetches, feed) for _ in range(runs)]
                return answers, session.run(v1.global_variables())

    plain = program()
    with recorded(steps, **plan) as found:
        captured = program()
    assert same(plain, captured), ("answers differ", plain, captured)
    return found, captured[0]


def close(found: Recorded, name: str, wanted, step=0, tolerance=1e-5, **kwargs) -> None:
    value = found.value(name, step, **kwargs)
    assert np.allclose(value, wanted, tolerance, tolerance), (name, value, wanted)


def x_fed():
    x = v1.placeholder(tf.float32, [None, 8], name="x")
    return x, {x: X}
