"""A script under opdump sees what it sees under `python train.py`, also through a symbolic link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opdump.commands.run import ProgramNotFoundError, load_module, load_script

_WHAT_A_SCRIPT_SEES = """
import sys
import json

print(json.dumps({
    "argv": sys.argv,
    "path": sys.path[0],
    "file": __file__,
    "name": __name__,
    "package": __package__,
    "spec": __spec__ and [__spec__.name, __spec__.origin],
    "cached": __cached__,
    "loader": [type(__loader__).__name__, __loader__.name],
    "doc": __doc__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "annotations": __annotations__,
    "builtins": __builtins__ is __import__("builtins"),
    "future": sorted(name for name in globals() if name in ("annotations", "absolute_import")),
}))
"""

_PICKLES_AND_SPAWNS = """
import multiprocessing
import os
import pickle
import sys
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def double(point):
    return Point(point.x * 2), __name__, os.path.basename(sys.argv[0]), sys.argv[1:]

if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Point(3))))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [Point(1), Point(2)]))
"""


def _python(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def _loaded(loader: str, name: str, *arguments: str, cwd: Path) -> str:
    code = f"from opdump.commands.run import {loader}; {loader}({name!r}, {arguments!r}).execute()"
    return _python("-c", code, cwd=cwd)


@pytest.mark.parametrize("script", ["train.py", "./train.py", "folder/train.py", "folder/../train.py", "directory"])
def test_a_script_sees_what_python_shows_it(tmp_path: Path, script: str) -> None:
    for place in ("train.py", "folder/train.py", "directory/__main__.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(_WHAT_A_SCRIPT_SEES)
    expected = _python(script, "--lr", "0.1", "--", "-c", cwd=tmp_path)
    if script == "directory":  # Python runs a directory like a zip archive, with a different spec
        assert '"argv": ["directory", "--lr"' in _loaded("load_script", script, "--lr", cwd=tmp_path)
        return
    assert _loaded("load_script", script, "--lr", "0.1", "--", "-c", cwd=tmp_path) == expected


def test_a_script_behind_a_link_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "neighbour.py").write_text("NAME = 'neighbour'")
    (tmp_path / "real" / "train.py").write_text("import neighbour; print(neighbour.NAME, __file__)")
    (tmp_path / "train.py").symlink_to("real/train.py")
    assert _loaded("load_script", "train.py", cwd=tmp_path) == _python("train.py", cwd=tmp_path)


@pytest.mark.parametrize("name", ["package.module", "package"])
def test_a_module_sees_what_python_shows_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for file in ("module.py", "__main__.py"):
        (tmp_path / "package" / file).write_text(
            "from . import __name__ as parent; print(parent)" + _WHAT_A_SCRIPT_SEES
        )
    # The first run leaves byte code that the second one may load.
    assert _loaded("load_module", name, "--lr", cwd=tmp_path) == _python("-m", name, "--lr", cwd=tmp_path)


@pytest.mark.parametrize("as_module", [False, True])
def test_classes_of_the_script_pickle_and_spawned_workers_import_it(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "train.py").write_text(_PICKLES_AND_SPAWNS)
    if as_module:
        assert _loaded("load_module", "train", "7", cwd=tmp_path) == _python("-m", "train", "7", cwd=tmp_path)
    else:
        assert _loaded("load_script", "train.py", "7", cwd=tmp_path) == _python("train.py", "7", cwd=tmp_path)


def test_a_future_import_of_opdump_does_not_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(x: 1 + 1): ...\nprint(f.__annotations__)")
    assert _loaded("load_script", "train.py", cwd=tmp_path) == "{'x': 2}\n"


def test_functions_that_run_at_exit_still_find_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import atexit, pickle\nclass Last: pass\natexit.register(lambda: print(type(pickle.loads(pickle.dumps(Last())))))"
    )
    assert _loaded("load_script", "train.py", cwd=tmp_path) == "<class '__main__.Last'>\n"


@pytest.mark.parametrize("script", ["absent.py", "absent/train.py", "empty_directory"])
def test_a_script_that_does_not_exist_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty_directory").mkdir()
    with pytest.raises(ProgramNotFoundError, match=f"cannot open the script '{script}': No such file"):
        load_script(script, ())


def test_a_file_that_is_not_source_is_reported(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\0\0")
    with pytest.raises(ProgramNotFoundError, match="is not Python source"):
        load_script(str(tmp_path / "model.pt"), ())


@pytest.mark.parametrize("name", ["absent", "absent.module", "json.absent", "sys.absent", "train.py"])
def test_a_module_that_does_not_exist_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    before = list(sys.path)
    with pytest.raises(ProgramNotFoundError, match="no module named"):
        load_module(name, ())
    assert sys.path == before


_PROGRAM = """
import sys
from opdump.configs.plan_fields import program_directory
from opdump.onnx.recording import plan_of
from opdump.configs.dialects import resolve_plan

config = sys.argv[1]
print(program_directory())
print(resolve_plan(config).path)
print(plan_of(config).path)
"""


def test_the_directory_of_a_script_is_that_of_its_file_and_not_of_a_link(tmp_path: Path) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    (real / "out").mkdir(parents=True)
    (linked / "out").mkdir(parents=True)
    config = tmp_path / "acl.json"
    config.write_text('{"dump": {"dump_path": "out", "dump_list": [], "dump_op_switch": "on"}}')
    program = real / "program.py"
    program.write_text(_PROGRAM)
    (linked / "program.py").symlink_to(program)
    (tmp_path / "also").symlink_to(real)
    for started in (program, linked / "program.py", tmp_path / "also/program.py"):
        done = subprocess.run([sys.executable, started, config], check=True, stdout=subprocess.PIPE, text=True)
        assert done.stdout.split() == [str(real), str(real / "out"), str(real / "out")], started
