"""Random TensorFlow programs give the same bits plainly and under capture, on both versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parity import peers

COUNT = 8
FOUND = {"session": (102,), "function": ()}
"""Seeds of programs whose answers once differed under capture."""


@pytest.mark.parametrize("kind", ["session", "function"])
# oneDNN fuses other operators; where nobody says, it depends on the processor whether it is on.
@pytest.mark.parametrize(
    ("python", "onednn"), [(peers.TENSORFLOW, "1"), (peers.TENSORFLOW215, "0")], ids=["2.21", "2.15"]
)
def test_random_programs_give_the_same_bits_under_capture(kind: str, python: Path, onednn: str) -> None:
    lines = []
    for first, count in ((0, COUNT), *((seed, 1) for seed in FOUND[kind])):
        printed = peers.run(
            python,
            [peers.SCRIPTS / "tf_random_programs.py", kind, str(first), str(count)],
            {
                "PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": onednn,
            },
        )
        lines += [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    compared = [line for line in lines if "same" in line]
    assert len(lines) == COUNT + len(FOUND[kind])
    assert len(compared) >= COUNT // 2, lines
    assert [line for line in compared if not line["same"]] == []
