"""TensorFlow functions, Keras and eager programs: TensorFlow itself says what should have been captured.

The programs run in environments with TensorFlow, the newest and 2.15.1; see `scripts/tf_functions_*.py`. They print one line of JSON
for each case, and each case is a test here.

    construct                                    what is compared with
    loops, branches, inner functions, gradients  numpy, from the inputs that were captured
    optimizers, variables                        numpy; the value before the update
    Keras (dropout, batch norm), custom loops    a second run without capture, bit for bit
    random numbers of every kind                 a second run without capture, bit for bit
    every operator and value                     TensorFlow's own debugger, version 2
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.parity import peers

PYTHONS = {"newest": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
CASES = [
    (script, name)
    for script in ("tf_functions_cases.py", "tf_functions_rules.py", "tf_functions_threads.py", "tf_functions_names.py")
    for name in re.findall(r"^@case\ndef (\w+)", (peers.SCRIPTS / script).read_text(encoding="utf-8"), re.MULTILINE)
]
# Programs that share a process: starting TensorFlow takes seconds, and no process may take minutes.
GROUPS = (
    ("keras_fit", "keras_several_steps_per_execution", "keras_batches"),
    ("custom_loop", "train_function", "eager_loop", "second_derivatives"),
    ("seeded_numbers", "numbers_seeded_by_operator", "numbers_of_a_generator", "eager_numbers"),
    ("control_flow", "fused_operators", "rewritten_arithmetic", "fed_from_a_dataset"),
    ("sums_in_a_loop_with_effects",),
)
# The debugger lists what feeds a graph, and what the runtime removes before it runs; of capture these are `constant`, `fed` and
# `not executed`. It leaves out what passes a tensor on.
ONLY_OF_THE_DEBUGGER = {
    "loops_and_branches": {
        *("Placeholder", "Const", "Range", "Sub", "FloorDiv", "FloorMod", "NotEqual", "Cast", "AddV2", "Maximum"),
    },
    "training": {"Placeholder", "Const", "Conv2DBackpropInput"},
}
ONLY_OF_CAPTURE = {"Identity"}
# A loop over a dataset is an operator of the dataset; its body runs there.
NOTES = {
    "fed_from_a_dataset": [
        "the functions that ScanDataset",
        "the functions that ReduceDataset",
        "the operators of Dataset_map_lambda are not shown: a data set runs it in threads of the runtime",
    ],
}
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}"}

# oneDNN fuses other operators; where nobody says, it depends on the processor whether it is on.
ONEDNN = {"newest": "1", "2.15": "0"}

versions = pytest.mark.parametrize("version", PYTHONS)


@functools.cache
def _lines(version: str, script: str, *arguments: str) -> tuple[dict[str, Any], ...]:
    printed = peers.run(
        PYTHONS[version], [peers.SCRIPTS / script, *arguments], ENVIRONMENT | {"TF_ENABLE_ONEDNN_OPTS": ONEDNN[version]}
    )
    return tuple(json.loads(line) for line in printed.splitlines() if line.startswith("{"))


def test_the_cases_are_all_there() -> None:
    assert len(CASES) >= 50


@versions
@pytest.mark.parametrize(("script", "name"), CASES)
def test_case(version: str, script: str, name: str) -> None:
    (found,) = [line for line in _lines(version, script) if line["case"] == name]
    assert found["held"], found["why"]


@versions
@pytest.mark.parametrize("program", [program for group in GROUPS for program in group])
def test_a_program_gives_the_same_bits_under_capture_and_after_it(version: str, program: str) -> None:
    (group,) = [each for each in GROUPS if program in each]
    found = [line for line in _lines(version, "tf_functions_same.py", *group) if line["case"].split()[0] == program]
    assert [line["case"] for line in found] == [f"{program} {run}" for run in ("0-1000", "0|2", "after")], found
    assert all(line["same"] for line in found), found
    every, some, _ = found
    assert every["counted"]
    assert some["counted"]
    assert every["tensors"] >= some["tensors"] > 0
    assert set(some["steps"]) <= {0, 2}
    assert every["notes"] == some["notes"]
    assert [re.split(r" \(|; ", note)[0] for note in every["notes"]] == NOTES.get(program, [])


@versions
@pytest.mark.parametrize("program", ONLY_OF_THE_DEBUGGER)
def test_the_debugger_of_tensorflow_sees_the_same_operators_and_values(version: str, program: str) -> None:
    (found,) = [line for line in _lines(version, "tf_functions_witness.py") if line["program"] == program]
    assert found["both"] > 20
    assert set(found["debugger alone"]) == ONLY_OF_THE_DEBUGGER[program]
    assert set(found["capture alone"]) == ONLY_OF_CAPTURE


@versions
def test_the_adapter_keeps_the_contract_of_adapters(version: str, tmp_path: Path) -> None:
    printed = peers.run(
        PYTHONS[version],
        [
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null"),
            *("--rootdir", tmp_path, peers.SCRIPTS / "tf_functions_contract.py"),
        ],
        ENVIRONMENT,
    )
    assert re.search(r"^\d+ passed in", printed.splitlines()[-1]), printed
