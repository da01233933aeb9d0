"""The table of operator types contains the operators in MindSpore's dumps of real networks, and every name that it assigns to MindSpore exists there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import opdump
from opdump.op_types import ROWS, rows_of
from opdump.op_types.unspecified import UNSPECIFIED_OF_MINDSPORE, unspecified_outputs
from tests.parity import peers
from tests.parity.lenet import CONFIG, make_dumps


@pytest.mark.long
def test_every_name_of_mindspore_is_an_operator() -> None:
    named = {name for row in ROWS for name in row.mindspore}
    assert len(named) > 400
    # The last name checks that the search reports missing names.
    printed = peers.run(peers.MINDSPORE, [peers.SCRIPTS / "mindspore_primitives.py", *named, "NoSuchOperator"], {})
    assert printed.splitlines()[-1].split() == ["missing", "NoSuchOperator"]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """MindSpore's dumps of LeNet, a residual block, a transformer block and a recurrent cell."""
    folder = tmp_path_factory.mktemp("networks")
    config = folder / "data_dump.json"
    config.write_text(json.dumps(CONFIG))
    environment = {"MINDSPORE_DUMP_CONFIG": str(config), "MS_DIAGNOSTIC_DATA_PATH": str(folder)}
    peers.run(peers.MINDSPORE, [peers.SCRIPTS / "networks_mindspore.py"], environment)
    return folder / "debug_dump", make_dumps(tmp_path_factory.mktemp("lenet")).mindspore


def test_the_table_has_every_operator_of_the_dumps(dumps: tuple[Path, Path]) -> None:
    found = {record.op.op_type for dump in dumps for record in opdump.open(dump).tensors()} - {"Parameter"}
    print(len(found), "types of operators")
    assert len(found) > 40
    assert sorted(each for each in found if not rows_of(each)) == []


OPTIMIZERS: Final = {"Adam", "AdamWeightDecay", "ApplyMomentum", "SGD"}


def test_optimizers_that_write_no_output_are_known(dumps: tuple[Path, Path]) -> None:
    """Their inputs are dumped after they ran; the outputs that they write are the weight and the moments."""
    unwritten: dict[str, set[int]] = {name: set() for name in OPTIMIZERS}
    seen = set()
    for dump in dumps:
        for execution in opdump.open(dump).ops():
            if execution.op.op_type in OPTIMIZERS:
                seen.add(execution.op.op_type)
                unwritten[execution.op.op_type] |= {
                    slot
                    for slot, record in execution.outputs.items()
                    if not np.array_equal(record.numpy(), execution.inputs[slot].numpy())
                }
    assert seen == OPTIMIZERS
    assert {name: set(unspecified_outputs(name)) for name in OPTIMIZERS} == unwritten
    assert set(UNSPECIFIED_OF_MINDSPORE) - OPTIMIZERS == {"mindspore::BatchNorm"}
