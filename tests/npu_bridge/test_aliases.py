"""`import npu_bridge` imports opdump's package, and never hides a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


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


def test_a_module_that_there_is_not_is_not_found() -> None:
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
