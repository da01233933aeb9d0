"""The values of a `parameter_map` that an NPURunConfig stands for."""

from __future__ import annotations

from opdump.configs.tensorflow.run_config import parameters_of_run_config

__all__ = ["parameters_of_run_config"]
