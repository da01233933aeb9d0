"""The drop-ins for npu_bridge and npu_device under TensorFlow: the last version with estimators, and a new one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.parity import peers

PYTHONS = {"2.15": peers.TENSORFLOW215, "2.21": peers.TENSORFLOW}
WITHOUT_PACKAGE = """
import sys
sys.modules["tensorflow_estimator"] = None
import opdump.npu_bridge
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import DumpConfig, NPURunConfig, npu_run_config_init
from opdump.adapters.tensorflow.estimator.v1_names import give_v1_names
from opdump.errors import PackageMissingError
give_v1_names()
config = NPURunConfig(dump_config=DumpConfig(True, "/tmp/d"), save_checkpoints_steps=7)
assert (config.save_checkpoints_steps, config.save_summary_steps, config.is_chief) == (7, 0, True)
assert npu_run_config_init(config) is config
for what in (lambda: tf.estimator.Estimator, lambda: __import__("npu_bridge.npu_init", fromlist=["NPUEstimator"]).NPUEstimator):
    try:
        print("found", what())
    except (AttributeError, PackageMissingError) as error:
        print(type(error).__name__, error)
"""
DISTRIBUTED = """
import tensorflow as tf
from opdump.adapters.tensorflow.estimator.names import estimators
try:
    estimators().RunConfig(train_distribute=tf.distribute.MirroredStrategy(["CPU:0"]))
except Exception as error:
    print(type(error).__name__, error)
"""


def run(version: str, arguments: Sequence[str | Path]) -> str:
    return peers.run(PYTHONS[version], arguments, {"PYTHONPATH": str(peers.ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "2"})


@pytest.mark.parametrize("version", PYTHONS)
def test_a_script_finds_what_it_asks_npu_bridge_for(version: str, tmp_path: Path) -> None:
    assert run(version, [peers.SCRIPTS / "npu_bridge_program.py", tmp_path]).startswith(f"{version}.")


def test_without_the_package_of_estimators_each_use_says_what_to_install() -> None:
    lines = run("2.21", ["-c", WITHOUT_PACKAGE]).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["GoneNameError", "PackageMissingError"]
    assert all("pip install tensorflow-estimator" in line for line in lines)


def test_an_estimator_that_is_to_be_distributed_is_refused() -> None:
    told = run("2.21", ["-c", DISTRIBUTED])
    assert told.startswith("EstimatorDistributionError RunConfig: found a distribution strategy")
    assert "take train_distribute" in told


@pytest.mark.parametrize("version", PYTHONS)
def test_every_name_of_npu_init_is_imported_with_a_star(version: str) -> None:
    code = """
import opdump.npu_bridge
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *
config = NPURunConfig(dump_config=DumpConfig(), session_config=npu_config_proto(tf.ConfigProto()))
assert isinstance(NPUEstimator, type)
"""
    run(version, ["-c", code])
