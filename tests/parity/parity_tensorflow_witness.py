"""Random and typical TensorFlow programs return the same bits under capture; every executed node is recorded, and computes the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import opdump
from opdump.layouts.graph_files.ge import read_ge_graph
from tests.parity import peers
from tests.parity.tf_executed_nodes import find
from tests.parity.tf_witness import VERSIONS, cases, run

COUNT = {"session": 8, "function": 8, "session of callbacks": 4, "function of callbacks": 4}
"""Programs per kind. Callbacks are of every kind, in branches, loops, functions, data sets and threads; their call counts are part of the answer."""
FOUND = {"session": (102,)}
"""Seeds of programs whose answers once differed under capture."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", COUNT)
# oneDNN fuses other operators; whether it is on by default depends on the processor.
@pytest.mark.parametrize(
    ("python", "onednn"), [(peers.TENSORFLOW, "1"), (peers.TENSORFLOW215, "0")], ids=["2.21", "2.15"]
)
def test_random_programs_give_the_same_bits_under_capture(kind: str, python: Path, onednn: str) -> None:
    lines = []
    for first, count in ((0, COUNT[kind]), *((seed, 1) for seed in FOUND.get(kind, ()))):
        printed = peers.run(
            python,
            [peers.SCRIPTS / "tf_random_programs.py", kind, str(first), str(count)],
            {
                "PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": onednn,
            },
        )
        lines += [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    compared = [line for line in lines if "same" in line]
    assert len(lines) == COUNT[kind] + len(FOUND.get(kind, ()))
    assert len(compared) >= COUNT[kind] // 2, lines
    assert [line for line in compared if not line["same"]] == []


SHARE = 0.99


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "name"), cases())
def test_an_operator_computed_again_gives_what_was_recorded(kind: str, name: str, version: str, tmp_path: Path) -> None:
    run(version, "run_tf_witness.py", kind, name, tmp_path, "--dump-alone")
    told = run(version, "recompute_tf.py", tmp_path / "dump")
    assert told["outputs"], "nothing was recorded"
    explained = told["equal"] + told["reordered"] + told["marked"]
    left_out = ", ".join(f"{count} {reason}" for reason, count in told["left_out"].items())
    print(
        f"{name}, TensorFlow {version}: {told['outputs']} outputs, {told['equal'] / told['outputs']:.2%} the same bits, "
        f"{told['reordered']} sums in another order, {told['marked']} fused; left out: {left_out}"
    )
    assert told["lacking"] == {}, "an operator has inputs that were not recorded"
    assert explained >= SHARE * told["outputs"], told["differing"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "name"), cases())
def test_every_executed_node_is_in_the_manifest(kind: str, name: str, version: str, tmp_path: Path) -> None:
    told = run(version, "run_tf_witness.py", kind, name, tmp_path)
    dump = tmp_path / "dump"
    found = find(told, opdump.open(dump).ops(include_skipped=True) if dump.exists() else ())
    print(f"{name}, TensorFlow {version}: {found}")
    assert found.executed > 4
    assert found.missing == []
    assert found.unseen == []


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
