"""The contract of every adapter, for JAX operators outside of compiled functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from opdump.adapters.base import Adapter
from opdump.adapters.jax.adapter import ADAPTER
from opdump.testing import AdapterTests

jax.config.update("jax_enable_x64", True)
Array = npt.NDArray[Any]


class TestJaxAdapter(AdapterTests):
    # Mismatched shapes raise while tracing, before anything runs, so there is no exception mode here.
    modes = ("data", "overflow")

    def adapter(self) -> Adapter:
        return ADAPTER

    def tensor(self, array: Array) -> Any:
        return jnp.asarray(array)

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def multiply(self, one: Any, other: Any) -> Any:
        return jax.lax.mul(one, other) if one.dtype != bool else jax.lax.bitwise_and(one, other)
