"""A training that a bad learning rate poisons: `opdump show` names the operator that made the first infinity, in each step behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import opdump
from opdump.checks.finding import Thresholds
from opdump.reports.findings import check_dump
from tests.parity import peers

PYTHONS = {"2.21": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
LAYER = {"2.21": "net_1/out_1/MatMul", "2.15": "net/out/MatMul"}


@pytest.fixture(scope="module", params=PYTHONS)
def dumped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    version: str = request.param
    root = tmp_path_factory.mktemp("poisoned")
    peers.run(
        PYTHONS[version],
        [peers.SCRIPTS / "tf_poisoned.py", root],
        {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return version, root


ORIGINS = {
    "too_large_for_two_layers": ("", "LAYER", "LAYER (in step 1)", "LAYER (in step 1)", "LAYER (in step 1)"),
    "an_infinite_rate_of_keras": (
        "learning_rate/AssignVariableOp_0",
        *["learning_rate/AssignVariableOp_0 (in step 0)"] * 4,
    ),
    "an_infinite_rate_of_a_loop": (
        "learning_rate/AssignVariableOp_0",
        *["learning_rate/AssignVariableOp_0 (in step 0)"] * 2,
    ),
    "a_product_of_a_function": ("mul", "mul (in step 0)", "mul (in step 0)"),
    "an_update_that_overflows": ("", *["ResourceApplyGradientDescent (in step 0)"] * 2),
    "an_update_of_a_session": ("", *["train/update_w/ResourceApplyGradientDescent (in step 0)"] * 2),
}


@pytest.mark.parametrize("program", ORIGINS)
def test_the_operator_that_made_the_first_infinity_is_named_in_each_step(
    program: str, dumped: tuple[str, Path]
) -> None:
    version, root = dumped
    shown = subprocess.run(
        [sys.executable, "-m", "opdump", "show", root / program], check=True, capture_output=True, text=True
    ).stdout
    header, *rows = shown.split("\n\n")[1].splitlines()
    place = header.index("first with nan/inf")
    expected = [text.replace("LAYER", LAYER[version]) for text in ORIGINS[program]]
    assert len(rows) == len(expected), shown
    for row, text in zip(rows, expected, strict=True):
        found = row[place:].partition("  ")[0]
        # Keras 3 gives each optimizer a name of its own.
        assert found == text or (found.endswith(f"/{text}") and text.startswith("learning_rate")), shown


def test_no_reader_of_a_poisoned_variable_is_an_origin_for_check(dumped: tuple[str, Path]) -> None:
    version, root = dumped
    for program in ORIGINS:
        findings = check_dump(opdump.open(root / program), Thresholds()).findings
        assert findings, program
        origins = {each.op_name for each in findings if each.origin}
        assert not {name for name in origins if "ReadVariableOp" in name or "Iterator" in name}, program
        made = {"too_large_for_two_layers": LAYER[version], "a_product_of_a_function": "mul"}.get(program)
        assert made is None or made in origins, program
