"""Each test begins with a new graph."""

from __future__ import annotations

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def _empty_graph() -> None:
    tf.compat.v1.reset_default_graph()
