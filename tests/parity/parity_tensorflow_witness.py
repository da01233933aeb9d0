"""Every node that TensorFlow executed is in the dump: TensorFlow's own report of a step, compared with the manifest of a dump.

The report is `RunMetadata.step_stats` of a run with FULL_TRACE; for functions, the events of their executors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from tests.parity.tf_executed_nodes import find
from tests.parity.tf_witness import VERSIONS, cases, run


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "name"), cases())
def test_every_executed_node_is_in_the_manifest(kind: str, name: str, version: str, tmp_path: Path) -> None:
    told = run(version, "run_tf_witness.py", kind, name, tmp_path)
    dump = tmp_path / "dump"
    found = find(told, opdump.open(dump).ops(include_skipped=True) if dump.exists() else ())
    print(f"{name}, TensorFlow {version}: {found}")
    assert found.executed > 4
    assert found.missing == []
    assert found.unseen == []
