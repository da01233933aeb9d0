"""The RunConfig of versions of TensorFlow that have none."""

from __future__ import annotations

from opdump.configs.tensorflow.plain_run_config import PlainRunConfig

__all__ = ["PlainRunConfig"]
