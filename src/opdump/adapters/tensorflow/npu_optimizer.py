"""The entry NpuOptimizer in the config of a session: where programs for Ascend devices ask for a dump."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NAME: Final = "NpuOptimizer"


def parameter_map_of(config: Any) -> Mapping[str, Any] | None:
    """The `parameter_map` of a ConfigProto's entry NpuOptimizer; None where there is none. Of several the first one counts."""
    if config is None:
        return None
    for optimizer in config.graph_options.rewrite_options.custom_optimizers:
        if optimizer.name == NAME:
            found: Mapping[str, Any] = optimizer.parameter_map
            return found
    return None
