"""The drop-ins for npu_bridge and npu_device under TensorFlow: the last version with estimators, and a new one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.parity import peers

PYTHONS = {"2.15": peers.TENSORFLOW215, "2.21": peers.TENSORFLOW}
HIDDEN = """
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == "tensorflow_estimator" else found(name, path, target)
PathFinder.find_spec = find_spec
"""
OLDER = """
import sys, tempfile, pathlib
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "tensorflow_estimator").mkdir()
(folder / "tensorflow_estimator" / "__init__.py").write_text("from tensorflow.python.util import what_is_gone")
sys.path.insert(0, str(folder))
"""
WITHOUT_PACKAGE = """
import opdump.npu_bridge
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *
from opdump.adapters.tensorflow.estimator import give_v1_names
from opdump.errors import PackageMissingError
give_v1_names()
config = NPURunConfig(dump_config=DumpConfig(True, "/tmp/d"), save_checkpoints_steps=7)
assert (config.save_checkpoints_steps, config.save_summary_steps, config.is_chief) == (7, 0, True)
assert npu_run_config_init(config) is config
with tf.Graph().as_default(), tf.Session(config=npu_config_proto(tf.ConfigProto())) as session:
    assert session.run(tf.constant(12.0)) == 12.0
for what in (lambda: tf.estimator.Estimator, lambda: NPUEstimator(lambda features: None, config=config)):
    try:
        print("found", what())
    except (AttributeError, PackageMissingError) as error:
        print(type(error).__name__, error)
"""
DISTRIBUTED = """
import tensorflow as tf
from opdump.adapters.tensorflow.estimator import estimators
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


@pytest.mark.parametrize(("how", "why"), [(HIDDEN, "No module named"), (OLDER, "cannot import name 'what_is_gone'")])
def test_without_a_package_of_estimators_sessions_run_and_an_estimator_says_what_to_install(how: str, why: str) -> None:
    lines = run("2.21", ["-c", how + WITHOUT_PACKAGE]).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["GoneNameError", "PackageMissingError"]
    assert all("pip install --upgrade tensorflow-estimator" in line and why in line for line in lines)


def test_an_estimator_that_is_to_be_distributed_is_refused() -> None:
    told = run("2.21", ["-c", DISTRIBUTED])
    assert told.startswith("EstimatorDistributionError RunConfig: found a distribution strategy")
    assert "remove train_distribute" in told


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
