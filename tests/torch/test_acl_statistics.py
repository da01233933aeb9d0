"""The statistics that are written instead of tensors, for a PyTorch program."""

from __future__ import annotations

import math
from pathlib import Path

import torch

import opdump
from opdump.layouts.ascend.operator_files import OperatorRow, decode_operator_csv
from opdump.plan import DumpPlan
from opdump.statistics import DEVICE_DEFAULT


def _rows(root: Path) -> list[OperatorRow]:
    return [
        row
        for path in sorted(root.rglob("*.csv"))
        if path.name != "mapping.csv"
        for row in decode_operator_csv(path.read_bytes(), where=str(path))
    ]


def _plan(root: Path) -> DumpPlan:
    return DumpPlan(path=root, layout="acl", dialect="acl", saved_data="statistic", statistic_category=DEVICE_DEFAULT)


def test_a_nan_counts_where_it_stands(tmp_path: Path) -> None:
    first, later = torch.tensor([math.nan, 2.0, 1.0]), torch.tensor([2.0, math.nan, 1.0])
    with opdump.capture(_plan(tmp_path)) as dump:
        first + 1
        later + 1
        (later.to(torch.float16)[::2] + 1).sum()
        dump.step()
    found = [(row.dtype, row.shape, row.statistics["max"], row.statistics["nan count"]) for row in _rows(tmp_path)]
    as_text = sorted(f"{dtype} {shape} {greatest:g} {nans}" for dtype, shape, greatest, nans in found if shape == (3,))
    assert as_text == sorted(
        [
            *("float32 (3,) nan 1",) * 2,  # an operand and the sum
            *("float32 (3,) 2 1", "float32 (3,) 3 1"),
            *("float32 (3,) 2 1", "float16 (3,) 2 1"),  # the cast
        ]
    )


def test_whole_numbers_keep_their_digits_and_bfloat16_has_none(tmp_path: Path) -> None:
    big = torch.tensor([2**62 + 1, 0])
    with opdump.capture(_plan(tmp_path)) as dump:
        big.clone()
        torch.ones(2, dtype=torch.bfloat16).neg()
        dump.step()
    (table,) = (path.read_text(encoding="utf-8") for path in tmp_path.rglob("*[cC]lone*.csv"))
    assert "DT_INT64,ND,2,4611686018427387905,0," in table
    assert [row.statistics for row in _rows(tmp_path) if row.dtype == "unknown"]
    assert not any(row.statistics for row in _rows(tmp_path) if row.dtype == "unknown")


def test_the_index_has_the_statistics_of_every_layout(tmp_path: Path) -> None:
    with opdump.capture(_plan(tmp_path)) as dump:
        torch.tensor([2.0, math.nan]).neg()
        dump.step()
    (record,) = [each for each in opdump.open(tmp_path) if each.op.op_type == "neg" and each.io == "output"]
    assert math.isnan(float(record.statistics["max"]))
    assert (record.statistics["nan count"], record.payload) == (1, None)
