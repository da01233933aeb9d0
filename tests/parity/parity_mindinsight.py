"""The DumpParser of MindSpore Insight 2.3.1 reads a dump of LeNet that opdump wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity import peers, tree
from tests.parity.lenet import CONFIG, STEPS, training_data

SCRIPT = peers.SCRIPTS / "lenet_torch.py"
CONV2_LINE = next(
    number for number, line in enumerate(SCRIPT.read_text().splitlines(), start=1) if "self.conv2(x)" in line
)
BY_PLACE = f"{SCRIPT.name}:{CONV2_LINE} "
BY_CODE = "self.relu(self.conv2(x))"


@pytest.fixture(scope="module", params=["mindspore-2.3", "mindspore-2.10"])
def dump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("insight")
    config, data = directory / "data_dump.json", directory / "lenet.npz"
    config.write_text(json.dumps(CONFIG))
    np.savez(data, allow_pickle=False, **training_data())
    peers.run(
        Path(sys.executable),
        ["-m", "opdump", "run", "-c", config, "--layout", request.param, SCRIPT, data],
        {"MS_DIAGNOSTIC_DATA_PATH": str(directory / "out")},
    )
    return directory / "out" / "debug_dump"


@pytest.fixture(scope="module")
def found(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")  # MindSpore Insight writes logs here
    arguments: list[str | Path] = [
        peers.SCRIPTS / "read_with_mindinsight.py",
        dump,
        home,
        SCRIPT.name,
        BY_PLACE,
        BY_CODE,
    ]
    printed = peers.run(peers.MINDINSIGHT, arguments, {"HOME": str(home)})
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def test_it_lists_every_kernel_with_its_type(dump: Path, found: dict[str, Any]) -> None:
    graph, _ = tree.graphs(dump)
    print(f"{len(graph.kernels)} kernels among {len(found['operators'])} operators that DumpParser lists")
    assert len(graph.kernels) > 60
    for node in graph.kernels:
        assert found["operators"][node.op_name]["type"] == node.op_type


def test_it_finds_every_kernel_by_the_script_with_a_line_of_it(dump: Path, found: dict[str, Any]) -> None:
    graph, _ = tree.graphs(dump)
    lines = SCRIPT.read_text().splitlines()
    by_script = found["queries"][SCRIPT.name]
    assert [node.op_name for node in graph.kernels if node.op_name not in by_script] == []
    for node in graph.kernels:
        stack = found["operators"][node.op_name]["stack"]
        places = [line for line in stack if Path(line["file_path"]).name == SCRIPT.name]
        assert places, node.op_name
        assert places[0] == stack[0], f"{node.op_name}: the innermost line is not the script's"
        for place in places:
            assert place["code_line"] == lines[place["line_no"] - 1].strip()


def test_it_finds_for_every_kernel_exactly_its_tensor_files(dump: Path, found: dict[str, Any]) -> None:
    graph, _ = tree.graphs(dump)
    by_script = found["queries"][SCRIPT.name]
    count = 0
    for step in range(STEPS):
        files: dict[str, dict[str, list[str]]] = {}
        for path, parts in tree.tensor_files(dump, step):
            if parts.op_type != "Parameter":
                files.setdefault(parts.op_name, {"input": [], "output": []})[parts.io].append(str(path))
        for node in graph.kernels:
            name = next((name for name in tree.names_in_files(node.op_name) if name in files), "")
            expected = files.pop(name, {"input": [], "output": []})
            theirs = by_script[node.op_name]["rank_0"][str(step)]
            assert {io: sorted(paths) for io, paths in theirs.items()} == expected, node.op_name
            count += sum(map(len, expected.values()))
        assert files == {}, "files of operators that are no kernel of the graph"
    print(f"{count} tensor files of {len(graph.kernels)} kernels in {STEPS} steps")


@pytest.mark.parametrize("query", [BY_PLACE, BY_CODE])
def test_it_finds_the_operators_of_one_line(dump: Path, found: dict[str, Any], query: str) -> None:
    graph, _ = tree.graphs(dump)
    kernels = {node.op_name for node in graph.kernels}
    names = [name for name in found["queries"][query] if name in kernels]
    print(f"{query!r}: {len(names)} kernels")
    types = {found["operators"][name]["type"] for name in names if not name.startswith("Gradients/")}
    assert types == {"convolution", "relu", "max_pool2d_with_indices"}
    backward = {found["operators"][name]["type"] for name in names if name.startswith("Gradients/")}
    assert backward == {"convolution_backward", "threshold_backward", "max_pool2d_with_indices_backward"}


def test_it_exports_a_workbook(found: dict[str, Any]) -> None:
    assert Path(found["xlsx"]).stat().st_size > 1000
