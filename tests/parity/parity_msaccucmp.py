"""The real msaccucmp of mindstudio-probe compared with opdump's as far as it works without CANN; its parser of graphs; the oldest protobuf."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opdump
from opdump.dump_file import DumpFile, DumpTensor, write_dump_file
from tests.parity import peers

NAME = "Add.net_add.1.2.1700000000000000"
COMMANDS = {
    "no command": [],
    "no dump": ["convert"],
    "an unknown command": ["transform"],
    "an unknown option": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-x"],
    "an unknown type": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-t", "csv"],
    "an unknown version": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-v", "3"],
    "an unknown format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "FOO"],
    "a shape that is none": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-s", "3x4"],
    "a shape with a zero": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-s", "0,4"],
    "a shape without a format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-s", "3,4"],
    "scripts without a format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-c", "{in}/good"],
    "an input without a format": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-i", "0"],
    "input and output": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-i", "0", "-o", "0"],
    "an input that is no number": ["convert", "-d", f"{{in}}/good/{NAME}", "-out", "{out}", "-f", "ND", "-i", "x"],
    "a path with a star": ["convert", "-d", "{in}/good/*", "-out", "{out}"],
    "nothing there": ["convert", "-d", "{in}/nothing", "-out", "{out}"],
    "a list of nothing": ["convert", "-d", "{in}/nothing,{in}/neither", "-out", "{out}"],
    "an empty directory": ["convert", "-d", "{in}/empty", "-out", "{out}"],
    "a directory with mapping.csv alone": ["convert", "-d", "{in}/mapped", "-out", "{out}"],
    "an empty file": ["convert", "-d", f"{{in}}/zero/{NAME}", "-out", "{out}"],
    "a directory of an empty file": ["convert", "-d", "{in}/zero", "-out", "{out}"],
    "a header beyond the file": ["convert", "-d", f"{{in}}/long/{NAME}", "-out", "{out}"],
    "compare without a side": ["compare", "-m", "{in}/good"],
    "compare of nothing": ["compare", "-m", "{in}/nothing", "-g", "{in}/good", "-out", "{out}"],
    "compare of an empty directory": ["compare", "-m", "{in}/empty", "-g", "{in}/good", "-out", "{out}"],
    "compare with a range and no rules": ["compare", "-m", "{in}/good", "-g", "{in}/good", "-r", "1,2,1"],
    "compare with a mapping and no rules": ["compare", "-m", "{in}/good", "-g", "{in}/good", "-map"],
    "compare with an unknown algorithm": ["compare", "-m", "{in}/good", "-g", "{in}/good", "-alg", "Foo"],
    "file_compare of a dump": [
        "file_compare",
        "-m",
        f"{{in}}/good/{NAME}",
        "-g",
        f"{{in}}/good/{NAME}",
        "-out",
        "{out}",
    ],
    "overflow without a directory": ["overflow"],
    "overflow of nothing": ["overflow", "-d", "{in}/nothing", "-out", "{out}"],
    "overflow with nothing found": ["overflow", "-d", "{in}/good", "-out", "{out}"],
    "overflow of too many": ["overflow", "-d", "{in}/good", "-out", "{out}", "-n", "6"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("in")
    for name in ("good", "empty", "mapped", "zero", "long"):
        (root / name).mkdir()
    tensor = DumpTensor.of("output", 0, np.arange(12, dtype=np.float32).reshape(3, 4))
    write_dump_file(root / "good" / NAME, DumpFile(outputs=(tensor,), op_name="net/add"))
    (root / "mapped" / "mapping.csv").write_text("123,Add.net_add.1.2.3\n")
    (root / "zero" / NAME).touch()
    (root / "long" / NAME).write_bytes(struct.pack("<Q", 1000) + bytes(40))
    return root


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_as_the_original_ends(name: str, folder: Path, tmp_path: Path) -> None:
    original = _run([str(peers.MSPROBE), str(peers.msaccucmp())], COMMANDS[name], folder, tmp_path / "original")
    own = _run([sys.executable, "-m", "opdump.msaccucmp"], COMMANDS[name], folder, tmp_path / "own")
    assert _untimed(own) == _untimed(original)


def _untimed(ended: tuple[int, list[str]]) -> tuple[int, list[str]]:
    return ended[0], [re.sub(r"_[0-9]{14}\.", "_<time>.", name) for name in ended[1]]


SPECIAL = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 65504, 1e-30, -1e30])


def _pair(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one kind, always the same."""
    random = np.random.default_rng(sorted(KINDS).index(kind))
    shape = (37, 113)
    values = random.standard_normal(shape) * 10.0 ** random.integers(-6, 7)
    other = values * (1 + random.standard_normal(shape) * 1e-3)
    if kind == "special":
        return SPECIAL.astype(np.float32), random.permutation(SPECIAL).astype(np.float32)
    if kind == "empty":
        return np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    if kind == "scalar":
        return np.array(3.0), np.array(2.5)
    if kind == "zeros":
        return np.zeros(shape), np.where(random.random(shape) < 0.5, 0, values)
    if kind == "bool":
        return values > 0, other > np.roll(other, 1)
    if kind == "int64":
        return random.integers(-(2**62), 2**62, shape), random.integers(-(2**62), 2**62, shape)
    return values.astype(kind), other.astype(kind)


KINDS = ("float16", "float32", "float64", "complex64", "int64", "bool", "special", "zeros", "empty", "scalar")


@pytest.mark.parametrize("kind", KINDS)
def test_two_arrays_are_as_far_apart_as_the_original_says(kind: str, tmp_path: Path) -> None:
    for name, array in zip("ab", _pair(kind), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    arguments = ["file_compare", "-m", "{in}/a.npy", "-g", "{in}/b.npy", "-out", "{out}"]
    results = []
    for side, program in (
        ("original", [str(peers.MSPROBE), str(peers.msaccucmp())]),
        ("own", [sys.executable, "-m", "opdump.msaccucmp"]),
    ):
        code, names = _run(program, arguments, tmp_path, tmp_path / side)
        results.append((code, [(tmp_path / side / name).read_bytes() for name in names]))
    assert results[1] == results[0]


def _run(program: Sequence[str], arguments: Sequence[str], folder: Path, output: Path) -> tuple[int, list[str]]:
    output.mkdir()
    filled = [argument.replace("{in}", str(folder)).replace("{out}", str(output)) for argument in arguments]
    environment = {**os.environ, "PYTHONPATH": str(peers.ROOT / "src") if "opdump.msaccucmp" in program else ""}
    result = subprocess.run(
        [*program, *filled], cwd=output, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    return result.returncode, sorted(path.name for path in output.iterdir())


IMAGE = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)


def _model(path: Path) -> Path:
    weights = np.random.default_rng(1).normal(size=(8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "weights"], ["planes"], "net/conv"),
            helper.make_node("Relu", ["planes"], ["positive"], "net/relu"),
            helper.make_node("GlobalAveragePool", ["positive"], ["scores"], "net/pool"),
        ],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 8, 1, 1])],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def _rules(dump: Path) -> dict[str, Any]:
    (graph,) = dump.glob("*/ge_proto_*_Build.txt.json")
    script = peers.SCRIPTS / "read_fusion_rules.py"
    printed = peers.run(peers.MSPROBE, [script, peers.msaccucmp().parent, graph], {})
    (line,) = (line for line in printed.splitlines() if line.startswith("RULES "))
    rules: dict[str, Any] = json.loads(line.removeprefix("RULES "))
    return rules


@pytest.mark.parametrize("level", ["disable", "extended"])
def test_the_parser_finds_the_original_operators(level: Literal["disable", "extended"], tmp_path: Path) -> None:
    model = _model(tmp_path / "net.onnx")
    dump = tmp_path / "dump"
    dump.mkdir()
    with opdump.onnx.session(model, dump_path=str(dump), dump_list=[{}], dump_mode="all", optimize=level) as session:
        session.run(None, {"image": IMAGE})
    rules = _rules(dump)
    operators = rules["operators"]
    assert rules["inputs"] == ["image"]
    run = {name: op for name, op in operators.items() if op["type"] not in ("Data", "Const", "NetOutput")}
    assert {op.op_name for op in opdump.open(dump).ops() if not op.skip} == set(run)
    originals = sorted(name for op in run.values() for name in op["original"])
    assert originals == ["net/conv", "net/pool", "net/relu"]
    conv = next(op for op in run.values() if "net/conv" in op["original"])
    assert conv["inputs"][:2] == ["image:0", "weights:0"]
    # The output of a fused operator is that of the last original operator.
    assert conv["outputs"] == [["net/relu" if "net/relu" in conv["original"] else "net/conv", 0]]
    assert ("net/relu" in conv["original"]) == (level == "extended")


@pytest.mark.parametrize("folder", ["graphs", "dump_file"])
def test_the_files_with_protobuf_4_25(folder: str) -> None:
    version = peers.run(peers.PROTOBUF4, ["-c", "import google.protobuf as p; print(p.__version__)"], {})
    assert version.startswith("4.25.")
    arguments: list[str | Path] = ["-m", "pytest", "-q", "-p", "no:cacheprovider", peers.ROOT / "tests" / folder]
    printed = peers.run(peers.PROTOBUF4, arguments, {"PYTHONPATH": str(peers.ROOT / "src")})
    print(printed.splitlines()[-1])
    assert "skipped" not in printed
