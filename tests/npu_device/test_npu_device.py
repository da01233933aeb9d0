"""`npu_device`: options that are checked on assignment, and the device that starts a dump."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opdump.npu_device as npu
from opdump.configs.tensorflow import TensorflowConfigError
from opdump.npu_device.configs.dump_config import NpuDumpConfig
from opdump.npu_device.configs.npu_config import NpuConfig
from opdump.npu_device.device import opened
from opdump.plan import StepSet


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has neither set an option nor opened a device."""
    for variable in ("ASCEND_DEVICE_ID", "DEVICE_ID"):
        monkeypatch.delenv(variable, raising=False)
    npu.global_options.cache_clear()
    opened.cache_clear()
    yield
    npu.global_options.cache_clear()
    opened.cache_clear()


def test_defaults() -> None:
    options = NpuConfig()
    dump = options.dump_config
    assert (dump.enable_dump, dump.dump_path, dump.dump_step, dump.dump_mode) == (False, None, None, "output")
    assert (dump.enable_dump_debug, dump.dump_debug_mode, dump.dump_data, dump.dump_layer) == (
        False,
        "all",
        "tensor",
        None,
    )
    assert (options.enable_exception_dump, options.quant_dumpable) == (2, None)
    assert dump.as_dict() == {
        "enable_dump": "0",
        "dump_mode": "output",
        "enable_dump_debug": "0",
        "dump_debug_mode": "all",
        "dump_data": "tensor",
    }


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        (
            "enable_dmp",
            True,
            ValueError,
            (
                "NpuDumpConfig has no option enable_dmp, all options ['enable_dump', 'dump_path', 'dump_step', 'dump_mode', "
                "'enable_dump_debug', 'dump_debug_mode', 'dump_data', 'dump_layer']"
            ),
        ),
        ("enable_dump", "True", TypeError, "Expected bool, got str"),
        ("enable_dump", None, TypeError, "Expected bool, got NoneType"),
        ("enable_dump", 2, TypeError, "Expected bool, got int"),
        ("enable_dump_debug", "1", TypeError, "Expected bool, got str"),
        ("dump_mode", "inputs", ValueError, "'inputs' not in optional list ['input', 'output', 'all']"),
        ("dump_mode", "All", ValueError, "'All' not in optional list ['input', 'output', 'all']"),
        ("dump_mode", 1, TypeError, "Expected str, got int"),
        ("dump_mode", None, TypeError, "Expected str, got NoneType"),
        ("dump_debug_mode", "x", ValueError, "'x' not in optional list ['aicore_overflow', 'atomic_overflow', 'all']"),
        ("dump_data", "statistic", ValueError, "'statistic' not in optional list ['tensor', 'stats']"),
    ],
)
def test_a_wrong_value_of_the_dump_is_refused_when_it_is_assigned(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    dump = NpuDumpConfig()
    before = dict(vars(dump))
    with pytest.raises(error) as raised:
        setattr(dump, name, value)
    assert str(raised.value) == words
    assert vars(dump) == before


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("enable_exception_dump", 3, ValueError, "'3' not in optional list [0, 1, 2]"),
        ("enable_exception_dump", "1", TypeError, "Expected int, got str"),
        ("quant_dumpable", 1, ValueError, "'1' not in optional list ['0', '1']"),
        ("dump_path", "x", ValueError, "NpuConfig has no option dump_path, all options ["),
        ("dump_config", {}, TypeError, "Expected NpuDumpConfig, got dict"),
    ],
)
def test_a_wrong_global_option_is_refused_when_it_is_assigned(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as raised:
        setattr(NpuConfig(), name, value)
    assert str(raised.value).startswith(words)


def test_flags_accept_one_and_zero_and_texts_are_not_checked() -> None:
    dump = NpuDumpConfig()
    dump.enable_dump = 1
    dump.enable_dump_debug = 0
    dump.dump_path, dump.dump_step, dump.dump_layer = 5, "x", ["a"]
    texts = dump.as_dict()
    assert (texts["enable_dump"], texts["enable_dump_debug"], texts["dump_path"]) == ("1", "0", "5")
    with pytest.raises(AttributeError, match="NpuDumpConfig has no option dump_list, all options"):
        dump.dump_list  # noqa: B018  # tests the access
    assert not hasattr(dump, "__wrapped__")


def test_options_of_other_parts_are_kept_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    options = NpuConfig()
    options.precision_mode = "allow_mix_precision"
    options.profiling_config.enable_profiling = True
    options.fusion_switch_file = "f.cfg"
    assert options.profiling_config.enable_profiling
    assert options.as_dict()["precision_mode"] == "allow_mix_precision"
    assert capsys.readouterr().out == ""
    options.op_debug_level = 1
    options.as_dict()
    assert (
        capsys.readouterr().out
        == "[warning][opdump] option op_debug_level of npu_device is deprecated, and has no effect here\n"
    )


def test_a_device_is_opened_with_the_options_of_that_time(process: None, tmp_path: Path) -> None:
    dump = npu.global_options().dump_config
    dump.enable_dump = True
    dump.dump_path = str(tmp_path)
    dump.dump_step = "0|5"
    dump.dump_mode = "all"
    device = npu.open(3)
    dump.dump_step = "7"
    assert device.device_id == device.dump.device_id == 3
    assert device.dump.plan is not None
    assert (device.dump.plan.path, device.dump.plan.steps) == (tmp_path.resolve(), StepSet.of(0, 5))
    assert npu.open(3) is npu.open() is device
    with pytest.raises(RuntimeError, match=r"Failed create npu instance on device 4 as existed instance on \[3\]"):
        npu.open(4)


def test_without_a_number_the_device_is_that_of_the_environment(process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DEVICE_ID", "6")
    device = npu.open()
    assert (device.device_id, device.dump.plan) == (6, None)


def test_what_only_the_graph_engine_checks_is_reported_when_the_device_is_opened(process: None, tmp_path: Path) -> None:
    dump = npu.global_options().dump_config
    dump.enable_dump = True
    with pytest.raises(TensorflowConfigError, match=r"E10058: npu_device: dump_path: if use dump function"):
        npu.open()
    dump.dump_path = str(tmp_path)
    dump.dump_step = "5-5"
    with pytest.raises(TensorflowConfigError, match=r"dump_step: .*the first step is >= second step"):
        npu.open()
    dump.dump_step = None
    dump.enable_dump_debug = True
    with pytest.raises(TensorflowConfigError, match=r"E10001: .*cannot be set to 1 at the same time"):
        npu.open()
    dump.enable_dump = False
    opened_device = npu.open()
    assert opened_device.dump.plan is not None
    assert opened_device.dump.plan.captures == "overflow"


def test_a_name_that_does_not_exist_is_reported() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'distribute'; docs/tensorflow-config\.md lists what it has"
    ):
        npu.distribute  # noqa: B018  # tests the access


def test_the_default_device_starts_the_dump(tmp_path: Path) -> None:
    code = f"""
import sys, types
started = []
module = types.ModuleType("opdump.tensorflow")
module.start = started.append
sys.modules["opdump.tensorflow"] = module
import opdump.npu_device
import npu_device as npu
npu.global_options().dump_config.enable_dump = True
npu.global_options().dump_config.dump_path = {str(tmp_path)!r}
device = npu.open()
assert started == []
assert device.as_default() is device
assert started == [device.dump]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
