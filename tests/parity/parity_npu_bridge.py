"""The drop-ins for npu_bridge and npu_device under TensorFlow: the last version with estimators, and a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import peers

# version: whether it has estimators
VERSIONS = {"2.15": True, "2.21": False}
PYTHONS = {"2.15": peers.TENSORFLOW215, "2.21": peers.TENSORFLOW}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_finds_what_it_asks_npu_bridge_for(version: str, tmp_path: Path) -> None:
    printed = peers.run(
        PYTHONS[version],
        [peers.SCRIPTS / "npu_bridge_program.py", tmp_path],
        {"PYTHONPATH": str(peers.ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    found, has_estimators = printed.split()
    assert found.startswith(f"{version}.")
    assert has_estimators == str(VERSIONS[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_of_npu_init_is_imported_with_a_star(version: str) -> None:
    code = """
import opdump.npu_bridge
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *
config = NPURunConfig(dump_config=DumpConfig(), session_config=npu_config_proto(tf.ConfigProto()))
assert isinstance(NPUEstimator, type)
"""
    peers.run(
        PYTHONS[version],
        ["-c", code],
        {"PYTHONPATH": str(peers.ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
