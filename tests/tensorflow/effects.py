"""Programs with effects outside of their graphs: their setup, and how often each effect happened, with and without capture."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from collections import Counter

import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.recording import same

X = np.array([1.0, 2.0], np.float32)


def counting(counts, name, result=lambda value: np.float32(value * 2)):
    def callback(*values):
        counts[name] += 1
        return result(*values)

    return callback


def host(counts, name, value, **options):
    """A Python callback in a graph."""
    made = tf.numpy_function(counting(counts, name), [value], tf.float32, **options)
    made.set_shape(value.shape)
    return made


def ran(program, folder):
    """The answer of a program, and how often each of its effects happened."""
    counts: Counter[str] = Counter()
    folder.mkdir()
    tf.random.set_seed(5)
    return program(counts, folder), counts


def hold_equal(plain, captured):
    """Assert that the answers are the same and that each effect happened equally often."""
    assert dict(captured[1]) == dict(plain[1])
    assert same(plain[0], captured[0])
