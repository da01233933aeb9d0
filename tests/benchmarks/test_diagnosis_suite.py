"""The diagnosis benchmark is consistent: its truths parse, its faults apply, and a plain rule finds a planted fault."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.diagnosis.__main__ import main
from benchmarks.diagnosis.programs import ACROSS, FRAMEWORKS, Edit, Program, marks, networks
from benchmarks.diagnosis.running import Dumps, Workers, scores_of
from benchmarks.diagnosis.scoring import is_exact, table
from benchmarks.diagnosis.suite import KINDS, Pair, clean_pairs, every_pair, fault_pairs, faults
from benchmarks.diagnosis.truth import parse
from benchmarks.diagnosis.verify import complaints
from benchmarks.diagnosis.worker import Worker


@pytest.mark.parametrize("network", networks())
def test_every_fault_changes_one_line_and_its_truth_can_be_read(network: str) -> None:
    for pair in fault_pairs(network):
        sound, faulty = Program(pair.b.script).source().splitlines(), pair.b.source().splitlines()
        assert sum(one != other for one, other in zip(sound, faulty, strict=True)) == 1, pair.name
        compile(pair.b.source(), pair.b.file, "exec")
        assert all(place.lines or place.name for place in pair.truth if "*" not in place.phases), pair.name


@pytest.mark.parametrize("framework", [*FRAMEWORKS[1:], ACROSS])
def test_every_pair_of_another_framework_can_run(framework: str) -> None:
    pairs = every_pair(framework)
    assert any(pair.truth for pair in pairs)
    assert not all(pair.truth for pair in pairs)
    for pair in pairs:
        for program in (pair.a, pair.b):
            compile(program.source(), program.file, "exec")


def test_faults_and_clean_pairs_of_two_frameworks_cover_each_two() -> None:
    pairs = every_pair(ACROSS)
    faulty = [(pair.a.runs_in, pair.b.runs_in) for pair in pairs if pair.truth]
    assert len(faulty) >= 60
    assert {*faulty} == {*itertools.permutations(FRAMEWORKS, 2)}
    clean = {frozenset((pair.a.runs_in, pair.b.runs_in)) for pair in pairs if not pair.truth}
    assert clean == {frozenset(each) for each in itertools.combinations(FRAMEWORKS, 2)}


def test_every_kind_of_fault_is_planted_often_and_many_in_refactored_programs() -> None:
    counts = Counter(fault.kind for network in networks() for fault in faults(network))
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 10
    pairs = [pair for network in networks() for pair in fault_pairs(network)]
    assert 3 * sum(pair.against == "refactored" for pair in pairs) >= sum(pair.against == "itself" for pair in pairs)


def test_clean_pairs_apply_and_differ_in_something() -> None:
    pairs = clean_pairs()
    assert len(pairs) >= 60
    for pair in pairs:
        compile(pair.b.source(), pair.b.file, "exec")
        assert pair.a.key != pair.b.key, pair.name


def test_an_edit_that_does_not_apply_once_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        Program("mlp", (Edit("loss", "nothing of the kind", ""),)).source()


@pytest.mark.parametrize(
    "text", ["norm2", "norm2:", "no-such-mark: add", "norm2: add @sideways"], ids=["type", "types", "mark", "phase"]
)
def test_a_truth_that_cannot_be_read_is_refused(text: str) -> None:
    program = Program("mlp")
    with pytest.raises(ValueError, match=r"truth|no line|unknown phase"):
        parse(text, program, program)


def test_an_answer_is_exact_on_its_line_in_its_phase_with_its_type() -> None:
    pair = next(pair for pair in every_pair() if pair.name == "resnet/eps of a norm")
    line = marks(Program("resnet"))["bn2"]
    right = {"name": "n", "op_type": "native_batch_norm", "phase": "forward", "source": ["/tmp/x/resnet.py", line]}
    assert is_exact(pair, {"a": None, "b": right})
    assert not is_exact(pair, {"a": right, "b": None})
    for wrong in ({"op_type": "relu"}, {"phase": "backward"}, {"source": ["resnet.py", line + 1]}, {"source": None}):
        assert not is_exact(pair, {"a": None, "b": {**right, **wrong}})


_SAMPLE = (
    "mlp/momentum of a norm",
    "mlp/residual",
    "mlp/swish",
    "mlp/weight decay",
    "gnn/shares of the edges",
    "gnn/a saved weight",
    "clean/mlp with again",
    "clean/mlp refactored",
    "clean/gnn with again",
    "clean/gnn products by einsum",
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    workers = Workers(1)
    with workers.one() as one:
        yield one
    workers.close()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    return Dumps(tmp_path_factory.mktemp("dumps"), keep=True)


@pytest.mark.slow
@pytest.mark.torch
def test_a_plain_rule_finds_planted_faults_and_leaves_clean_pairs_alone(worker: Worker, dumps: Dumps) -> None:
    scores = {}
    for pair in every_pair():
        if pair.name in _SAMPLE:
            (scores[pair.name],) = scores_of(worker, pair, dumps, ["sequence"], ["statistics"])
    assert set(scores) == set(_SAMPLE)
    assert not any(score.error for score in scores.values())
    assert scores["mlp/momentum of a norm"].exact
    assert scores["clean/mlp with again"].verdict == "benign"
    lines = table(scores.values())
    assert any(line.startswith("all faults") for line in lines)
    assert any(line.startswith("clean") for line in lines)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", _SAMPLE[::2])
def test_what_a_pair_says_of_itself_is_true(name: str, worker: Worker, dumps: Dumps) -> None:
    (pair,) = (pair for pair in every_pair() if pair.name == name)
    assert complaints(worker, pair, dumps) == []


@pytest.mark.slow
@pytest.mark.torch
def test_a_fault_that_changes_nothing_is_complained_of(worker: Worker, dumps: Dumps) -> None:
    a, b = Program("mlp"), Program("mlp", (Edit("inner", "self.inner(x)", "self.inner(x * 1.0)"),))
    pair = Pair("mlp/nothing", "mlp", "formula", a, b, parse("inner: addmm", a, b), "inner: addmm")
    (complaint,) = complaints(worker, pair, dumps)
    assert "changes nothing" in complaint


def test_the_list_of_pairs_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--network", "gpt", "--kind", "bit"]) == 0
    assert "gpt/a softmax" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.torch
def test_an_interrupted_run_continues_with_the_pairs_that_are_not_in_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.json"
    arguments = ["--method", "sequence", "--mode", "statistics", "--jobs", "1", "--json", str(file), "--resume"]
    assert main([*arguments, "--only", "mlp/swish"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == [f"{done} of {len(said)}" for done in range(1, len(said) + 1)]
    finished = json.loads(file.read_text())
    assert len(finished) == len(said) > 1
    file.write_text(json.dumps([{**finished[0], "said": ["from the file"]}]))
    assert main([*arguments, "--only", "mlp/swish"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == len(said) - 1
    continued = json.loads(file.read_text())
    assert continued[0]["said"] == ["from the file"]
    assert {score["pair"] for score in continued} == {score["pair"] for score in finished}


def test_a_run_without_a_file_cannot_be_continued(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--resume"])
    assert "add --json FILE" in capsys.readouterr().err


@pytest.mark.parametrize("network", networks("onnx"))
def test_every_fault_of_a_model_applies_in_both_modes(network: str) -> None:
    pairs, planted = fault_pairs(network, "onnx"), faults(network, "onnx")
    in_twins = sum(fault.twin is not None for fault in planted)
    expected = {"itself": 2 * len(planted), "refactored": 2 * in_twins, "another mode": len(planted)}
    assert Counter(pair.against for pair in pairs) == Counter(expected)
    for pair in pairs:
        compile(pair.b.source(), pair.b.file, "exec")
        assert all(place.name or place.types for place in pair.truth), pair.name
