"""Reads how often a tensor was written into, as PyTorch counts it."""

from __future__ import annotations

from typing import Any

import torch

from opdump.adapters.torch.private_names import writes_into
from opdump.adapters.torch.unseen import unseen


def version_of(value: Any) -> int:
    """The version counter of a tensor; -1 for what has none: tensors that were made in inference mode, and whatever is no tensor."""
    with unseen():
        return writes_into(value) if isinstance(value, torch.Tensor) and not value.is_inference() else -1
