"""The tests of opdump's protobuf files, with the oldest supported protobuf; `make test` runs them with the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import peers


@pytest.mark.parametrize("folder", ["graphs", "dump_file"])
def test_the_files_with_protobuf_4_25(folder: str) -> None:
    version = peers.run(peers.PROTOBUF4, ["-c", "import google.protobuf as p; print(p.__version__)"], {})
    assert version.startswith("4.25.")
    arguments: list[str | Path] = ["-m", "pytest", "-q", "-p", "no:cacheprovider", peers.ROOT / "tests" / folder]
    printed = peers.run(peers.PROTOBUF4, arguments, {"PYTHONPATH": str(peers.ROOT / "src")})
    print(printed.splitlines()[-1])
    assert "skipped" not in printed
