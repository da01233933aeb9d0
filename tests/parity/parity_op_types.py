"""The table of operator types has what MindSpore dumps of real networks, and MindSpore has every name that the table gives it."""

from __future__ import annotations

import json
from pathlib import Path

import opdump
from opdump.op_types import ROWS, rows_of
from tests.parity import peers
from tests.parity.lenet import CONFIG, make_dumps


def test_every_name_of_mindspore_is_an_operator() -> None:
    named = {name for row in ROWS for name in row.mindspore}
    assert len(named) > 400
    # The last one tells whether the search finds what is missing.
    printed = peers.run(peers.MINDSPORE, [peers.SCRIPTS / "mindspore_primitives.py", *named, "NoSuchOperator"], {})
    assert printed.splitlines()[-1].split() == ["missing", "NoSuchOperator"]


def test_the_table_has_every_operator_of_the_dumps(tmp_path: Path) -> None:
    config = tmp_path / "data_dump.json"
    config.write_text(json.dumps(CONFIG))
    environment = {"MINDSPORE_DUMP_CONFIG": str(config), "MS_DIAGNOSTIC_DATA_PATH": str(tmp_path)}
    peers.run(peers.MINDSPORE, [peers.SCRIPTS / "networks_mindspore.py"], environment)
    lenet = tmp_path / "lenet"
    lenet.mkdir()
    dumps = tmp_path / "debug_dump", make_dumps(lenet).mindspore
    found = {record.op.op_type for dump in dumps for record in opdump.open(dump).tensors()} - {"Parameter"}
    print(len(found), "types of operators")
    assert len(found) > 40
    assert sorted(each for each in found if not rows_of(each)) == []
