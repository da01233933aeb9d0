"""TensorFlow programs that ask for their dumps: streamed tensors, failing operators, directories; on both versions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.parity import peers

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["2.21", "2.15"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each case of the program found."""
    python = {"2.21": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}[request.param]
    printed = peers.run(
        python,
        [peers.SCRIPTS / "tf_recordings.py", tmp_path_factory.mktemp("recordings")],
        {"PYTHONPATH": str(peers.ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    cases = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {case["case"]: case for case in cases}


def test_streamed_tensors_are_those_of_a_run_that_is_fetched_whole(found: Found) -> None:
    case = found["streams"]
    assert case["tensors"] > 100
    assert len(set(case["sizes"])) == 1
    assert case["differing"] == []
    assert case["loops"] == 3, "a loop leaves each of its iterations"


def test_a_failing_operator_leaves_its_inputs_whole(found: Found) -> None:
    case = found["failures 1"]
    assert [re.sub(r"\d{17}", "T", name) for name in case["files"]] == ["CheckNumerics.check.8.T"] * 2
    assert case["inputs"] == [["[nan, nan, nan]"], ["[nan, -inf, 0.0]"]], "as the iterator gave them in that run"
    assert case["messages"] == [True, True]


def test_a_failing_operator_leaves_what_is_known_of_it(found: Found) -> None:
    case = found["failures 2"]
    assert [re.sub(r"\d{17}", "T", name) for name in case["files"]] == ["exception_info.0.8.T"] * 2
    assert case["inputs"] == [[], []]
    assert case["messages"] == [True, True]


def test_a_failing_callable_leaves_what_the_operator_read(found: Found) -> None:
    case = found["failures of callables"]
    assert case["said"] == [["InvalidArgumentError", [0.0, 0.0]]] * 3
    assert case["inputs"] == ["[nan, 0.0]"] * 3


def test_the_dump_of_failures_can_be_switched_off(found: Found) -> None:
    assert found["failures 0"]["leftover"] == []


@pytest.mark.parametrize("level", [1, 2])
def test_a_dump_of_a_failure_changes_nothing(found: Found, level: int) -> None:
    plain, dumped = found["failures 0"], found[f"failures {level}"]
    assert plain["said"] == ["InvalidArgumentError", "InvalidArgumentError", "", "OutOfRangeError"]
    assert (dumped["said"], dumped["results"]) == (plain["said"], plain["results"])
    assert dumped["leftover"] == ["extra-info"], (
        "the end of the data is no failure, and directories are made by failures alone"
    )


def test_files_go_where_the_environment_says(found: Found) -> None:
    case = found["directories"]
    graphs = f"graphs/pid_{case['pid']}_deviceid_5"
    names = [re.sub(r"\d{14}", "T", re.sub(r"\d{16}", "S", name)) for name in case["files"]]
    names = [re.sub(r"T_\d+/\d+/", "T_n/n/", re.sub(r"proto_\d{5}", "proto_n", name)) for name in names]
    assert names == [
        "T/5/.dump_metadata/ge_graphs.json",
        "T/5/.dump_metadata/index.sqlite",
        "T/5/ge_default_T_n/n/0/AddV2.scope_a_b.2.0.S",
        f"{graphs}/ge_proto_n_Build.txt",
        f"{graphs}/ge_proto_n_Build.txt.json",
    ]
    assert case["steps"] == [[0]]


def test_overflow_detection_keeps_the_operator_that_overflows(found: Found) -> None:
    assert found["overflow"]["operators"] == [["square", 1]]
    assert found["overflow"]["has_file"]
