"""The ten programs of `tf_witness_programs/`: their names, and the dump of one step of each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.parity import peers

VERSIONS = {"2.21": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
_FILES = {"of_sessions": "session", "of_functions": "function"}
_FOLDER = Path(__file__).parent / "tf_witness_programs"
PROGRAMS = [
    (kind, name)
    for file, kind in _FILES.items()
    for name in re.findall(r"^def ([a-z]\w*)", (_FOLDER / f"{file}.py").read_text("utf-8"), re.MULTILINE)
]


def cases() -> list[Any]:
    """Parameters of a test, `kind` and `name`."""
    return [pytest.param(kind, name, id=name) for kind, name in PROGRAMS]


def run(version: str, script: str, *arguments: str | Path) -> dict[str, Any]:
    """The last output line of a script under this version. Raises RuntimeError if it fails, because that is not a gap."""
    environment = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        printed = peers.run(VERSIONS[version], [peers.SCRIPTS / script, *arguments], environment)
    except AssertionError as error:
        raise RuntimeError(f"{script} failed") from error
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return told
