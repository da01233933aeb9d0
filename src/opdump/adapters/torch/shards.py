"""Finds the shard of a process in a tensor that is spread over several (`DTensor`)."""

from __future__ import annotations

from typing import Any

import torch

from opdump.adapters.torch.private_names import local_part_of


def shard_of(tensor: Any) -> Any:
    """What this process has of a tensor that is spread over several, as its operators see it; else the tensor itself."""
    kind = type(tensor)
    if kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed."):
        shard = local_part_of(tensor)
        if type(shard) is torch.Tensor:  # not one that a collective still writes
            return shard
    return tensor
