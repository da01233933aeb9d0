"""Each recorded operator of a TensorFlow program, recomputed from its recorded inputs with `tf.raw_ops`, produces the recorded outputs.

An operator that is marked as part of a fused one may differ. Operators that use the state behind a handle, and operators that draw random numbers
from their own sequence, are excluded by a fixed list of types.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.tf_witness import VERSIONS, cases, run

SHARE = 0.99


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "name"), cases())
def test_an_operator_computed_again_gives_what_was_recorded(kind: str, name: str, version: str, tmp_path: Path) -> None:
    run(version, "run_tf_witness.py", kind, name, tmp_path, "--dump-alone")
    told = run(version, "recompute_tf.py", tmp_path / "dump")
    assert told["outputs"], "nothing was recorded"
    explained = told["equal"] + told["reordered"] + told["marked"]
    left_out = ", ".join(f"{count} {reason}" for reason, count in told["left_out"].items())
    print(
        f"{name}, TensorFlow {version}: {told['outputs']} outputs, {told['equal'] / told['outputs']:.2%} the same bits, "
        f"{told['reordered']} sums in another order, {told['marked']} fused; left out: {left_out}"
    )
    assert told["lacking"] == {}, "an operator has inputs that were not recorded"
    assert explained >= SHARE * told["outputs"], told["differing"]
