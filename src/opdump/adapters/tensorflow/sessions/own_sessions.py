"""Sessions of the capture itself."""

from __future__ import annotations

import tensorflow as tf


class OwnSession(tf.compat.v1.Session):  # type: ignore[misc]  # TensorFlow has no types
    """A session in which nothing is the program's, and which nobody records."""
