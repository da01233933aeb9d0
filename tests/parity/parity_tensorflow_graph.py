"""Graph files of TensorFlow programs, read by the fusion rule parser of msaccucmp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opdump.layouts.graph_files.ge import read_ge_graph
from tests.parity import peers

PROGRAMS = ("training", "starting", "initialising", "feeding", "partly fed", "function", "imported")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("graphs")
    environment = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    printed = peers.run(peers.TENSORFLOW, ["-m", "tests.tensorflow.sessions.ge_graph_programs", directory], environment)
    (line,) = (line for line in printed.splitlines() if line.startswith("GRAPHS "))
    found: dict[str, Any] = json.loads(line.removeprefix("GRAPHS "))
    assert tuple(found) == PROGRAMS
    return found


def _rules(file: str) -> dict[str, Any]:
    script = peers.SCRIPTS / "read_fusion_rules.py"
    printed = peers.run(peers.MSPROBE, [script, peers.msaccucmp().parent, f"{file}.json"], {})
    (line,) = (line for line in printed.splitlines() if line.startswith("RULES "))
    rules: dict[str, Any] = json.loads(line.removeprefix("RULES "))
    return rules


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_parser_of_msaccucmp_finds_every_operator(name: str, programs: dict[str, Any]) -> None:
    graphs = read_ge_graph(Path(programs[name]["file"]))
    rules = _rules(programs[name]["file"])
    root = {operator.name: operator for operator in graphs[0].operators}
    assert set(root) <= set(rules["operators"])
    for operator_name, operator in root.items():
        found = rules["operators"][operator_name]
        assert found["original"] == ([operator_name] if operator_name != "parts_0" else ["parts"])
        # The parser skips control inputs.
        assert found["inputs"] == [source for source in operator.inputs if not source.endswith(":-1")]
        if operator.op_type == "Data":
            continue
        # For an operator without outputs, the parser creates one output without a number.
        slots: list[int | None] = list(range(len(operator.outputs))) or [None]
        assert found["outputs"] == [[operator_name, slot] for slot in slots]
    data = [operator.name for operator in root.values() if operator.op_type == "Data"]
    assert [each for each in rules["inputs"] if each in root] == data
