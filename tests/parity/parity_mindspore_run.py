"""MindSpore programs under `opdump run`: the answer equals that of a plain run, and the dump of compiled code is MindSpore's own."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from opdump.catalog.catalog import open_dump
from opdump.commands import main
from opdump.layouts.graph_files.mindspore import decode_pb
from tests.parity import peers, tree

PROGRAMS = Path(__file__).parent / "mindspore_programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "shared")
NET = "Net"
PYNATIVE = f"rank_0/{NET}/pynative/"
CATEGORIES = [
    *("max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count"),
    *("negative inf count", "positive inf count", "zero count", "md5", "l2norm"),
]
ENVIRONMENT = {"PYTHONPATH": str(peers.ROOT / "src")}


@cache
def runs(name: str, place: Path) -> Runs:
    """The runs of a program: twice plain, under MindSpore's own dump, under opdump."""
    return Runs(name, place / name)


class Runs:
    def __init__(self, name: str, place: Path) -> None:
        place.mkdir()
        self.own, self.opdump = place / "own", place / "opdump"
        program = PROGRAMS / f"{name}.py"
        plain = [peers.run(peers.MINDSPORE, [program], {}) for _ in range(2)]
        own = peers.run(peers.MINDSPORE, [program], {"MINDSPORE_DUMP_CONFIG": str(_config(self.own, "tensor"))})
        command: list[str | Path] = ["-m", "opdump", "run", "-c", _config(self.opdump, "full"), program]
        opdump = peers.run(peers.MINDSPORE, command, ENVIRONMENT)
        self.digests = [_digest(text) for text in (*plain, own, opdump)]


def _config(path: Path, saved_data: str) -> Path:
    statistics = {"statistic_category": CATEGORIES} if saved_data == "full" else {}
    common = {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": str(path),
        "net_name": NET,
        "iteration": "all",
        "saved_data": saved_data,
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **statistics,
    }
    file = path.with_suffix(".json")
    file.write_text(
        json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}})
    )
    return file


def _digest(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("digest ")]
    assert int(line.split()[1]) > 1, line
    return line


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mindspore")


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_that_of_the_plain_run(name: str, place: Path) -> None:
    first, second, own, opdump = runs(name, place).digests
    assert first == second, "the program itself gives the same answer twice"
    assert own == first
    assert opdump == first


@pytest.mark.parametrize("name", NAMES)
def test_the_tree_is_that_of_mindspores_own_dump(name: str, place: Path) -> None:
    found = runs(name, place)
    theirs, ours = _tree(found.own), _tree(found.opdump)
    added = {file for file in ours.keys() - theirs.keys() if not file.startswith(PYNATIVE)}
    added = {file for file in added if "pynative" not in file}
    assert all(file.endswith(("/statistic.csv", ".dump_metadata/index.sqlite")) for file in added), sorted(added)
    assert theirs.keys() <= ours.keys(), sorted(theirs.keys() - ours.keys())
    tensors = [file for file in theirs if file.endswith(".npy")]
    print(f"{name}: {len(theirs)} names, {len(tensors)} of tensors")
    assert len(tensors) > 10
    for file in theirs:
        if file.endswith(".BFloat16.npy") or "/.dump_metadata/" in file:
            continue  # float32 in opdump's dump; the configuration is the user's
        assert ours[file] == theirs[file], file


def _tree(dump: Path) -> dict[str, list[str]]:
    """Digests of the files below a dump, by their names without time stamps.

    In graphs, addresses and numbers that MindSpore counts in several threads are removed: they also differ between two runs of MindSpore.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for path in dump.rglob("*"):
        if path.is_file():
            name = re.sub(r"\.[0-9]{16}\.(input|output)\.", r".\1.", path.relative_to(dump).as_posix())
            content = path.read_bytes()
            if path.suffix == ".ir":
                content = re.sub(rb"0x[0-9a-f]+|(?<=__)[0-9]+", b"", content)
            elif path.suffix == ".pb":
                nodes = decode_pb(content, where=name).nodes
                content = re.sub(
                    r"(?<=__)[0-9]+", "", repr([(node.op_name, node.op_type, node.inputs) for node in nodes])
                ).encode()
            files[name].append(hashlib.md5(content, usedforsecurity=False).hexdigest())
    return {name: sorted(digests) for name, digests in files.items()}


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_those_of_the_elements(name: str, place: Path) -> None:
    catalog = open_dump(runs(name, place).opdump)
    count = 0
    for record in catalog.tensors():
        if record.payload is None or not record.statistics:
            continue
        array = record.payload.to_host()
        wide = array.astype(np.float64)
        expected = {"max": wide.max(), "min": wide.min(), "avg": wide.mean(), "l2norm": math.sqrt((wide**2).sum())}
        for statistic, value in expected.items():
            found = float(record.statistics[statistic])
            assert found == pytest.approx(float(value), rel=1e-12, abs=1e-300), f"{record.name}: {statistic}"
        assert record.statistics["count"] == array.size
        assert record.statistics["zero count"] == np.count_nonzero(wide == 0)
        if record.dtype != "bfloat16":
            assert record.statistics["md5"] == hashlib.md5(array.tobytes(), usedforsecurity=False).hexdigest()
        count += 1
    print(f"{name}: {count} tensors")
    assert count > 10
    assert catalog.problems == ()


def test_every_operator_of_lenet_has_its_line(place: Path) -> None:
    dump = runs("lenet_graph", place).opdump
    catalog = open_dump(dump)
    ops = [op for op in catalog.ops(step=1) if op.op_type != "Parameter"]
    assert len(ops) == len(tree.execution_order(dump)) > 40
    assert all(op.stack for op in ops)
    forward = [op for op in ops if "backbone" in op.op_name]
    assert {Path(op.stack[0].file).name for op in forward} == {"shared.py"}
    assert catalog.problems == ()


def test_the_two_modes_of_a_program_are_benign_and_a_changed_program_is_divergent(place: Path) -> None:
    """Numbers that graphs pass as tensors, shapes in memory, and inputs that hooks do not see do not count as differences."""
    graph, pynative = runs("lenet_graph", place), runs("lenet_pynative", place)
    assert graph.digests[0] != pynative.digests[0], "one prints its gradients, too"
    done = CliRunner().invoke(main, ["compare", str(graph.opdump), str(pynative.opdump), "--json"])
    assert json.loads(done.stdout)["verdict"] in ("benign", "identical"), done.output
    changed = place / "leaky"
    program = PROGRAMS / "lenet_graph.py"
    command: list[str | Path] = ["-m", "opdump", "run", "-c", _config(changed, "full"), program, "leaky"]
    peers.run(peers.MINDSPORE, command, ENVIRONMENT)
    for before in (graph.opdump, pynative.opdump):
        done = CliRunner().invoke(main, ["compare", str(before), str(changed), "--json"])
        found = json.loads(done.stdout)
        assert found["verdict"] == "divergent", done.output
        assert "LeakyReLU" in found["introduced"][0]["b"]["name"]
