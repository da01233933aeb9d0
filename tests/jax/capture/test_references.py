"""Functions that write into a `jax.Ref` write once, and the twin writes into its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from opdump.adapters.jax import twin as twins
from opdump.adapters.jax.flat import new_reference
from tests.jax.capture.recording import recorded


def scaled(ref: Any, factor: Any) -> Any:
    ref[...] = ref[...] * factor
    return jnp.sin(ref[...]).sum()


@pytest.mark.parametrize("most_bytes", [2**30, 1])
def test_reads_and_writes_of_a_ref_are_recorded(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MOST_BYTES", most_bytes)
    ref = new_reference(jnp.arange(3.0))
    function = jax.jit(scaled)
    with recorded() as recording:
        for _ in range(2):
            function(ref, 2.0)
    np.testing.assert_array_equal(ref[...], [0, 4, 8])
    assert recording.recorder.warnings == []
    products, sines = recording.ops(op_type="mul"), recording.ops(op_type="sin")
    np.testing.assert_array_equal([recording.array(op) for op in products], [[0, 2, 4], [0, 4, 8]])
    np.testing.assert_array_equal([recording.array(op, "input") for op in sines], [[0, 2, 4], [0, 4, 8]])
    assert recording.counts()["get"] == 4
