"""The values of the `parameter_map` for an NPURunConfig."""

from __future__ import annotations

from opdump.configs.tensorflow import parameters_of_run_config

__all__ = ["parameters_of_run_config"]
