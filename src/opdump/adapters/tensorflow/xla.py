"""XLA: what it compiles has no operators to look at."""

from __future__ import annotations

import tensorflow as tf

from .capture import XlaError

_HOW = (
    "leave jit_compile=True out (Keras: model.compile(..., jit_compile=False)), or leave out the steps in which it runs"
)


def refuse_xla(compiled: str | None) -> None:
    """Raises XlaError where XLA compiles a function or a call (`compiled` is its name), or clusters of operators anywhere."""
    if compiled is not None:
        raise XlaError(f"{compiled} is compiled by XLA, which leaves no operators to dump; {_HOW}")
    if tf.config.optimizer.get_jit():
        raise XlaError(
            "tf.config.optimizer.set_jit lets XLA compile clusters of operators, which leaves no operators to dump; "
            "call tf.config.optimizer.set_jit(False)"
        )
