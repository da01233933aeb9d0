"""`npu_bridge`: its import, its configs and the `parameter_map` values that they produce, and helpers."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opdump.configs.tensorflow import PlainRunConfig
from opdump.npu_bridge import npu_init
from opdump.npu_bridge.estimator.npu.npu_config import DumpConfig, run_config_class
from opdump.npu_bridge.estimator.npu.parameters import parameters_of_run_config


class _Session:  # a ConfigProto
    pass


# The class without tf.estimator; with TensorFlow, tests/parity compares it with the real RunConfig.
NPURunConfig: Any = run_config_class(PlainRunConfig, _Session, __name__)


def _written(config: Any) -> dict[str, Any]:
    return {key: value.value for key, value in parameters_of_run_config(config).items()}


def test_the_constructor_of_dump_config_has_the_order_and_defaults_of_the_original() -> None:
    parameters = inspect.signature(DumpConfig).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "enable_dump": False,
        "dump_path": None,
        "dump_step": None,
        "dump_mode": "output",
        "enable_dump_debug": False,
        "dump_debug_mode": "all",
        "dump_data": "tensor",
        "dump_layer": None,
    }
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
    assert list(parameters) == [
        "enable_dump",
        "dump_path",
        "dump_step",
        "dump_mode",
        "enable_dump_debug",
        "dump_debug_mode",
        "dump_data",
        "dump_layer",
    ]


def test_dump_config_keeps_what_it_is_given_unchecked() -> None:
    config = DumpConfig(1, 2, 3, 4, 5, 6, 7, 8)
    assert vars(config) == {
        "_enable_dump": 1,
        "_dump_path": 2,
        "_dump_step": 3,
        "_dump_mode": 4,
        "_enable_dump_debug": 5,
        "_dump_debug_mode": 6,
        "dump_data": 7,
        "dump_layer": 8,
    }
    with pytest.raises(TypeError):
        DumpConfig(quant_dumpable="1")  # type: ignore[call-arg]  # this version has no such argument


def test_run_config_takes_every_setting_and_no_other() -> None:
    every = inspect.signature(NPURunConfig).parameters
    for name in ("dump_config", "session_config", "quant_dumpable", "enable_exception_dump", "op_debug_level"):
        assert name in every
    config = NPURunConfig(
        3,
        None,
        "/tmp/model",
        save_checkpoints_steps=7,
        precision_mode="allow_mix_precision",
        op_debug_config="o",
        quant_dumpable="1",
    )
    assert (config.iterations_per_loop, config.model_dir, config.save_checkpoints_steps) == (3, "/tmp/model", 7)
    assert (config._precision_mode, config._op_debug_config, config.quant_dumpable) == ("allow_mix_precision", "o", "1")
    with pytest.raises(TypeError, match=r"NPURunConfig: got an unexpected keyword argument 'dump_confg'"):
        NPURunConfig(dump_confg=DumpConfig())
    with pytest.raises(TypeError, match=r"NPURunConfig: too many positional arguments"):
        NPURunConfig(*range(1, 200))


def test_defaults_of_run_config() -> None:
    config = NPURunConfig()
    assert isinstance(config.session_config, _Session)
    assert (config.enable_exception_dump, config.quant_dumpable, config._dump_config) == (2, None, None)
    assert (config.iterations_per_loop, config.save_checkpoints_steps, config.save_summary_steps) == (1, 100, 0)
    assert (config.is_chief, config.task_type, config.num_worker_replicas) == (True, "worker", 1)
    session = _Session()
    assert NPURunConfig(session_config=session, save_checkpoints_secs=9).session_config is session
    assert NPURunConfig(save_checkpoints_secs=9).save_checkpoints_steps is None


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"dump_config": {"enable_dump": True}}, ValueError, "`dump_config` must be provided with type `DumpConfig`"),
        ({"dump_config": False}, ValueError, "`dump_config` must be provided with type `DumpConfig`"),
        ({"enable_exception_dump": "1"}, TypeError, "enable_exception_dump must be int, got <class 'str'>"),
        ({"enable_exception_dump": None}, TypeError, "enable_exception_dump must be int, got <class 'NoneType'>"),
        ({"enable_exception_dump": -1}, ValueError, "enable_exception_dump must be nonnegative, got -1"),
        ({"iterations_per_loop": 0}, ValueError, "iterations_per_loop must be positive, got 0"),
    ],
)
def test_run_config_checks_in_the_words_of_the_original(keys: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error) as raised:
        NPURunConfig(**keys)
    assert str(raised.value) == message


def test_bounds_and_texts_are_not_looked_at_before_a_session_is_made() -> None:
    config = NPURunConfig(enable_exception_dump=99, quant_dumpable=7, dump_config=DumpConfig(True, dump_mode="x"))
    assert config.enable_exception_dump == 99


def test_a_plain_run_config_is_copied_and_not_changed() -> None:
    config = NPURunConfig(model_dir="/a", dump_config=DumpConfig(True))
    other = config.replace(model_dir="/b")
    assert (config.model_dir, other.model_dir, other._dump_config) == ("/a", "/b", config._dump_config)
    assert type(other) is NPURunConfig
    assert copy.deepcopy(config).model_dir == "/a"
    assert pickle.loads(pickle.dumps(config)).model_dir == "/a"
    with pytest.raises(AttributeError, match=r"model_dir cannot be assigned; .*config.replace\(model_dir=...\)"):
        config.model_dir = "/c"
    with pytest.raises(AttributeError, match="no attribute 'model_dri'"):
        config.model_dri  # noqa: B018  # tests the access
    with pytest.raises(ValueError, match="expected one of the two"):
        NPURunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
    with pytest.raises(TypeError, match="RunConfig: found model_dri, expected some of model_dir"):
        config.replace(model_dri="/c")
    assert (PlainRunConfig().save_checkpoints_secs, PlainRunConfig().save_checkpoints_steps) == (600, None)


def test_without_a_dump_config_both_flags_are_written_and_no_text() -> None:
    assert _written(NPURunConfig()) == {
        "use_off_line": True,
        "enable_exception_dump": 2,
        "iterations_per_loop": 1,
        "mix_compile_mode": False,
        "enable_data_pre_proc": True,
        "enable_dump": False,
        "enable_dump_debug": False,
    }


def test_a_dump_config_is_written_with_fields_of_the_right_kind() -> None:
    config = NPURunConfig(
        dump_config=DumpConfig(True, "/tmp/dump", "0|5|10", "all", dump_layer="a b"),
        session_device_id=3,
        fusion_switch_file="f.cfg",
        debug_dir="d",
        quant_dumpable="1",
        enable_exception_dump=1,
    )
    found = parameters_of_run_config(config)
    assert {key: value.kind for key, value in found.items() if value.kind != "s"} == {
        "use_off_line": "b",
        "enable_exception_dump": "i",
        "iterations_per_loop": "i",
        "mix_compile_mode": "b",
        "enable_data_pre_proc": "b",
        "session_device_id": "i",
        "enable_dump": "b",
        "enable_dump_debug": "b",
    }
    assert {key: value.value for key, value in found.items() if value.kind == "s"} == {
        "quant_dumpable": b"1",
        "fusion_switch_file": b"f.cfg",
        "debug_dir": b"d",
        "dump_path": b"/tmp/dump",
        "dump_step": b"0|5|10",
        "dump_mode": b"all",
        "dump_debug_mode": b"all",
        "dump_data": b"tensor",
        "dump_layer": b"a b",
    }


def test_texts_that_are_none_are_not_written_and_the_mode_guards_the_other_mode() -> None:
    written = _written(NPURunConfig(dump_config=DumpConfig(dump_mode=None, dump_debug_mode="all", dump_data=None)))
    assert written.keys().isdisjoint(
        {"dump_path", "dump_step", "dump_mode", "dump_debug_mode", "dump_data", "dump_layer"}
    )
    with pytest.raises(TypeError, match="dump_debug_mode: Expected binary or unicode string, got None"):
        parameters_of_run_config(NPURunConfig(dump_config=DumpConfig(dump_debug_mode=None)))
    # neither was requested
    assert "dump_debug_mode" not in _written(NPURunConfig(dump_config=DumpConfig(dump_mode=None, dump_debug_mode=None)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DumpConfig(dump_path=5), "dump_path: Expected binary or unicode string, got 5"),
        (DumpConfig(dump_step=[0, 5]), r"dump_step: Expected binary or unicode string, got \[0, 5\]"),
        (DumpConfig(enable_dump="yes"), "found 'yes' for a flag, expected True or False"),
    ],
)
def test_a_value_that_a_parameter_map_cannot_hold_is_a_type_error(config: DumpConfig, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parameters_of_run_config(NPURunConfig(dump_config=config))


def test_a_stock_run_config_counts_as_one_without_a_dump_config() -> None:
    written = _written(PlainRunConfig())
    assert (written["enable_dump"], written["enable_exception_dump"]) == (False, 2)


def test_configs_are_imported_without_tensorflow_and_run_config_is_made_when_it_is_asked_for() -> None:
    code = """
import sys
from opdump.configs.tensorflow import PlainRunConfig
from opdump.npu_bridge.estimator.npu import npu_config, npu_estimator
import opdump.npu_bridge.npu_init
assert "NPURunConfig" not in vars(npu_config)
assert "tensorflow" not in sys.modules
sys.modules["tensorflow"] = None  # an import of it fails from here on
from opdump.npu_bridge.npu_init import NPURunConfig
assert NPURunConfig is npu_config.NPURunConfig
assert issubclass(NPURunConfig, PlainRunConfig)
config = NPURunConfig(dump_config=npu_config.DumpConfig(True, "/tmp/dump"))
assert config.session_config is None
assert config._dump_config._enable_dump is True
import pickle
assert pickle.loads(pickle.dumps(config)).save_checkpoints_steps == 100
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_helper_without_tensorflow_says_that_it_is_missing() -> None:
    code = """
import sys
from opdump.npu_bridge.npu_init import npu_config_proto
sys.modules["tensorflow"] = None  # an import of it fails from here on
npu_config_proto()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "FrameworkMissingError: the npu_bridge of opdump needs TensorFlow, which cannot be imported" in done.stderr


def test_names_that_do_not_exist_are_reported() -> None:
    from opdump.npu_bridge.estimator.npu import npu_config, npu_estimator

    with pytest.raises(AttributeError, match="has no attribute 'NPUConfig'; it has DumpConfig, NPURunConfig"):
        npu_config.NPUConfig  # noqa: B018  # tests the access
    with pytest.raises(AttributeError, match="has no attribute 'Estimator'; it has NPUEstimator"):
        npu_estimator.Estimator  # noqa: B018  # tests the access


def _run(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = f"import sys\nsys.path[:0] = {[str(path)] if path else []}\n{code}"
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=False, cwd=path
    )


def _ran(code: str, *, path: Path | None = None) -> str:
    done = _run(code, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(params=["npu_bridge", "npu_device"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_without_importing_opdump_the_alias_does_not_exist(name: str) -> None:
    assert f"No module named '{name}'" in _run(f"import {name}").stderr
    assert f"No module named '{name}'" in _run(f"import opdump, opdump.configs.dialects; import {name}").stderr


def test_modules_are_the_same_objects_under_both_names() -> None:
    assert (
        _ran("""
import opdump.npu_bridge
import npu_bridge.estimator.npu.npu_config as short
from npu_bridge.estimator.npu.npu_config import DumpConfig
from npu_bridge.estimator import npu as package
from npu_bridge import npu_init
import npu_bridge
import opdump.npu_bridge.estimator.npu.npu_config as long
assert npu_bridge is opdump.npu_bridge
assert short is long
assert package is opdump.npu_bridge.estimator.npu
assert npu_init is opdump.npu_bridge.npu_init
assert DumpConfig is npu_init.DumpConfig
assert {short.__name__, short.__spec__.name} == {"opdump.npu_bridge.estimator.npu.npu_config"}
assert npu_bridge.__spec__.name == "opdump.npu_bridge"
import importlib, pickle
importlib.reload(npu_bridge)
pickle.loads(pickle.dumps(DumpConfig(True)))
assert "tensorflow" not in sys.modules
print(len([finder for finder in sys.meta_path if "Alias" in type(finder).__name__]))
""")
        == "1\n"
    )


def test_importing_it_prepares_the_capture_of_sessions_unless_a_real_package_exists(tmp_path: Path) -> None:
    code = """
import opdump.tensorflow
asked = []
opdump.tensorflow.install_on_import = lambda: asked.append(1)
opdump.tensorflow.prepare_main = lambda: asked.append(0)
import opdump.npu_bridge
print(asked)
"""
    assert _ran(code) == "[0, 1]\n"
    assert "[]\n" in _ran(code, path=_real(tmp_path, "npu_bridge"))
    alone = code.replace(
        "import opdump.npu_bridge",
        'from opdump.interpreter.imports import add_alias\nadd_alias("npu_bridge", "opdump.npu_bridge")\nimport npu_bridge',
    )
    assert _ran(alone) == "[]\n"


def test_the_same_for_npu_device() -> None:
    _ran("""
import opdump.npu_device
import npu_device as npu
from npu_device.configs.npu_config import NpuConfig
assert npu is opdump.npu_device
assert isinstance(npu.global_options(), NpuConfig)
assert npu.global_options() is opdump.npu_device.global_options()
assert "tensorflow" not in sys.modules
""")


def test_a_module_that_does_not_exist_is_not_found() -> None:
    done = _run("import opdump.npu_bridge\nimport npu_bridge.estimator.nothing")
    assert "No module named 'npu_bridge.estimator.nothing'" in done.stderr
    assert "No module named 'npu_bridgework'" in _run("import opdump.npu_bridge\nimport npu_bridgework").stderr


def _real(folder: Path, name: str) -> Path:
    package = folder / "installed" / name
    (package / "estimator").mkdir(parents=True)
    (package / "__init__.py").write_text("ORIGINAL = True\n", encoding="utf-8")
    (package / "estimator" / "__init__.py").write_text("ORIGINAL = True\n", encoding="utf-8")
    return folder / "installed"


@pytest.mark.parametrize("first", [True, False])
def test_a_real_package_stays_what_it_is_and_a_warning_says_so(tmp_path: Path, name: str, first: bool) -> None:
    path = _real(tmp_path, name)
    printed = _ran(
        f"""
{f"import {name}" if first else ""}
import opdump.{name} as own
assert own.install() is False
import {name}
import {name}.estimator
assert {name}.ORIGINAL and {name}.estimator.ORIGINAL
assert {name} is not own
own.uninstall()
assert sys.modules["{name}"].ORIGINAL
""",
        path=path,
    )
    assert f"there is a package {name} in this environment, and `import {name}` still imports it" in printed


def test_a_real_package_that_comes_later_is_not_hidden_either(tmp_path: Path, name: str) -> None:
    path = _real(tmp_path, name)
    _ran(f"""
import opdump.{name}
sys.path.insert(0, {str(path)!r})
import {name}
import {name}.estimator
assert {name}.ORIGINAL and {name}.estimator.ORIGINAL
""")


def test_uninstall_ends_it_and_install_begins_it_again(name: str) -> None:
    printed = _ran(f"""
import opdump.{name} as own
import {name}
own.uninstall()
try:
    import {name}
except ModuleNotFoundError as error:
    print(error)
assert own.install() is True
assert own.install() is True
import {name}
assert {name} is own
""")
    assert printed == f"No module named '{name}'\n"


def test_lists_and_optimizers_are_given_back() -> None:
    hooks: list[object] = [1]
    assert npu_init.npu_hooks_append(hooks) is hooks
    assert npu_init.npu_callbacks_append(hooks) is hooks
    assert hooks == [1]
    assert npu_init.npu_callbacks_append() == npu_init.npu_callbacks_append((1, 2)) == []
    optimizer = object()
    assert npu_init.npu_tf_optimizer(optimizer) is optimizer
    assert npu_init.npu_keras_optimizer(optimizer) is optimizer
    assert npu_init.npu_distributed_optimizer_wrapper(optimizer) is optimizer


def test_ranks_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK_ID", raising=False)
    monkeypatch.delenv("RANK_SIZE", raising=False)
    assert (npu_init.get_rank_id(), npu_init.get_rank_size(), npu_init.get_local_rank_id()) == (0, 1, 0)
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "8")
    assert (npu_init.get_npu_rank_id(), npu_init.get_npu_rank_size()) == (3, 8)
    monkeypatch.setenv("RANK_ID", "three")
    with pytest.raises(ValueError, match="RANK_ID is 'three', expected a number"):
        npu_init.get_rank_id()


def test_a_shutdown_operation_of_the_program_is_run_and_none_is_not() -> None:
    class Session:
        def __init__(self) -> None:
            self.done: list[object] = []

        def run(self, operation: object) -> None:
            self.done.append(operation)

        def close(self) -> None:
            self.done.append("closed")

    session = Session()
    npu_init.shutdown_resource(session, None)
    npu_init.shutdown_resource(session, "end")
    npu_init.close_session(session)
    assert session.done == ["end", "closed"]


def test_every_listed_name_exists_and_a_missing_one_is_reported() -> None:
    lazy = {"NPUEstimator", "NPURunConfig", "NpuEmptyHook", "RewriterConfig"}
    assert lazy == {name for name in npu_init.__all__ if name not in vars(npu_init)}
    with pytest.raises(AttributeError, match=r"npu_init' has no attribute 'NPUOptimizer'; docs/tensorflow-config"):
        npu_init.NPUOptimizer  # noqa: B018  # tests the access
