"""The oldest protobuf that opdump allows runs the tests of the graph files; `make test` runs them with the newest."""

from __future__ import annotations

from pathlib import Path

from tests.parity import peers


def test_the_graph_files_with_protobuf_4_25() -> None:
    version = peers.run(peers.PROTOBUF4, ["-c", "import google.protobuf as p; print(p.__version__)"], {})
    assert version.startswith("4.25.")
    arguments: list[str | Path] = ["-m", "pytest", "-q", "-p", "no:cacheprovider", peers.ROOT / "tests" / "graphs"]
    printed = peers.run(peers.PROTOBUF4, arguments, {"PYTHONPATH": str(peers.ROOT / "src")})
    print(printed.splitlines()[-1])
    assert "skipped" not in printed
