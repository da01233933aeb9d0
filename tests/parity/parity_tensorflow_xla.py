"""What XLA compiles under capture: functions, Keras, sessions; each case runs once without a capture and has to give the same bits with it."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from tests.parity import peers

PYTHONS = {"newest": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
SCRIPT = peers.SCRIPTS / "tf_xla.py"
CASES = re.findall(r"^@(asked|flags)\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@functools.cache
def _told(version: str, mode: str) -> dict[str, dict[str, Any]]:
    environment = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    printed = peers.run(PYTHONS[version], [SCRIPT, mode], environment)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {line["case"]: line for line in lines}


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize(("mode", "case"), CASES)
def test_case(version: str, mode: str, case: str) -> None:
    told = _told(version, mode)[case]
    assert told["held"], told["why"]
