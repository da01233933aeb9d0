"""The frameworks that can be captured, by the names of their packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opdump.extensions import Registry

if TYPE_CHECKING:
    from opdump.adapters.base import Adapter

FRAMEWORKS: Final[Registry[Adapter]] = Registry(
    "opdump.adapters",
    {
        "torch": "opdump.adapters.torch.adapter:ADAPTER",
        "tensorflow": "opdump.adapters.tensorflow.adapter:ADAPTER",
        "jax": "opdump.adapters.jax.adapter:ADAPTER",
        "mindspore": "opdump.adapters.mindspore.adapter:ADAPTER",
    },
)
"""Loading an adapter may import its framework."""
