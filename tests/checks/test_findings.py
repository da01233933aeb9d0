"""The findings of each check, and of all checks over the operators of a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opdump.checks import CHECKS, CheckName, Checks, Finding, Thresholds
from opdump.checks.tensor_checks import TensorStats, stats_of, stats_of_summary
from opdump.kernels import summarise
from opdump.records import IO, OpRecord, StatisticValue, TensorRecord

NAN, INF = math.nan, math.inf


def said(check: CheckName, *values: float, dtype: str = "float32", thresholds: Thresholds | None = None) -> str:
    stats = stats_of_summary(summarise(np.array(values, dtype)))
    return CHECKS.load(check)(stats, dtype, thresholds or Thresholds())


def test_each_check_says_what_it_found_in_a_few_words() -> None:
    assert said("nan", 1, NAN, NAN) == "2 of 3 elements"
    assert said("inf", 1, INF, -INF) == "2 of 3 elements"
    assert said("all zero", 0, -0.0, 0) == "3 elements"
    assert said("extreme", 1, -60000, dtype="float16") == "-60000, the largest float16 is 65504"


@pytest.mark.parametrize("check", CHECKS.names())
def test_an_ordinary_or_empty_tensor_gives_no_check_anything_to_say(check: CheckName) -> None:
    assert said(check, 1, 2, 0, -3) == ""
    assert said(check) == ""


def test_zeros_of_integers_of_single_numbers_and_extremes_of_integers_are_ordinary() -> None:
    assert said("all zero", 0, 0, dtype="int32") == ""
    assert said("all zero", 0) == ""
    assert said("all zero", 0, thresholds=Thresholds(zeros=1)) == "1 elements"
    assert said("extreme", 127, dtype="int8") == ""


def test_thresholds_move_and_have_limits() -> None:
    assert said("extreme", 40000, dtype="float16") == ""
    assert said("extreme", 40000, dtype="float16", thresholds=Thresholds(extreme=0.5)) != ""
    with pytest.raises(ValueError, match="extreme is 2"):
        Thresholds(extreme=2)
    with pytest.raises(ValueError, match="zeros is 0"):
        Thresholds(zeros=0)


@pytest.mark.parametrize(
    ("statistics", "stats"),
    [
        ({"max": 1.0, "min": -1.0, "l2norm": 2.0}, TensorStats(4, 0, 0, -1, 1.0, -1.0)),
        ({"max": 0.0, "min": 0.0}, TensorStats(4, 0, 0, 4, 0.0, 0.0)),
        ({"max": INF, "min": 0.0}, TensorStats(4, 0, -1, -1, INF, 0.0)),
        ({"l2norm": 0.0}, TensorStats(4, 0, None, 4, None, None)),
        ({"nan count": 2, "positive inf count": 1, "negative inf count": 0}, TensorStats(4, 2, 1, None, None, None)),
        ({"positive inf count": 1}, TensorStats(4, None, -1, None, None, None)),
        ({"md5": "00"}, None),
        ({}, None),
    ],
)
def test_stats_come_from_whichever_statistics_there_are(
    statistics: dict[str, StatisticValue], stats: TensorStats | None
) -> None:
    assert stats_of(statistics, 4) == stats


def test_a_nan_is_found_in_the_extremes_if_it_was_not_counted() -> None:
    stats = stats_of({"max": NAN, "min": NAN, "l2norm": NAN}, 4)
    assert stats is not None
    assert stats.nan == -1
    assert CHECKS.load("nan")(stats, "float32", Thresholds()) == "some of 4 elements"


def tensor(op: OpRecord, io: IO, *values: float, source: str = "", **more: Any) -> tuple[TensorRecord, TensorStats]:
    array = np.array(values, np.float32)
    record = TensorRecord(op, io, 0, "float32", array.shape, source=source, **more)
    return record, stats_of_summary(summarise(array))


def op(op_type: str, **more: Any) -> OpRecord:
    return OpRecord(op_type, f"Default/{op_type}-op0", 1, **more)


def brief(findings: list[Finding]) -> list[tuple[str, str | None, bool, bool]]:
    return [(each.check, each.io, each.origin, each.inherited) for each in findings]


def test_the_first_operator_that_makes_an_inf_is_the_origin_and_its_readers_inherit() -> None:
    checks = Checks(Thresholds())
    exp, add, log = op("exp"), op("add"), op("log")
    assert brief(checks.findings(exp, [tensor(exp, "input", 1), tensor(exp, "output", INF)])) == [
        ("inf", "output", True, False)
    ]
    read = tensor(add, "input", INF, source="Default/exp-op0:0")
    assert brief(checks.findings(add, [read, tensor(add, "output", NAN)])) == [("nan", "output", False, True)]
    assert brief(checks.findings(log, [tensor(log, "input", 0), tensor(log, "output", -INF)])) == [
        ("inf", "output", False, False)
    ]


def test_a_mask_of_inf_and_what_it_makes_of_scores_is_no_finding() -> None:
    checks = Checks(Thresholds())
    fill = op("masked_fill", arguments={"value": {"float": "-inf"}})
    assert checks.findings(fill, [tensor(fill, "input", 1), tensor(fill, "output", -INF)]) == []
    add, softmax = op("add"), op("softmax")
    mask = tensor(add, "input", -INF, 0, source="Default/masked_fill-op0:0")
    assert checks.findings(add, [mask, tensor(add, "output", -INF, 1)]) == []
    scores = tensor(softmax, "input", -INF, 1, source="Default/add-op0:0")
    found = checks.findings(softmax, [scores, tensor(softmax, "output", NAN, NAN)])
    assert brief(found) == [("nan", "output", True, False)]


def test_an_infinity_that_is_no_mask_is_reported_and_is_no_origin() -> None:
    checks = Checks(Thresholds())
    fill = op("masked_fill", arguments={"value": {"float": "inf"}})
    found = checks.findings(fill, [tensor(fill, "input", 1), tensor(fill, "output", INF)])
    assert brief(found) == [("inf", "output", False, False)]


def test_zeros_are_reported_at_their_maker_and_not_at_their_readers() -> None:
    checks = Checks(Thresholds())
    relu, mul, addmm = op("relu"), op("mul"), op("addmm")
    assert brief(checks.findings(relu, [tensor(relu, "input", -1, -2), tensor(relu, "output", 0, 0)])) == [
        ("all zero", "output", False, False)
    ]
    zeros = tensor(mul, "input", 0, 0, source="Default/relu-op0:0")
    assert checks.findings(mul, [zeros, tensor(mul, "output", 0, 0)]) == []
    bias = tensor(addmm, "input", 0, 0, source="Parameter.bias", argument="self")
    found = checks.findings(addmm, [bias, tensor(addmm, "input", 1, 2), tensor(addmm, "output", 0, 0)])
    assert brief(found) == [("all zero", "output", False, False)]


def test_zeros_that_an_operator_was_asked_to_make_are_no_finding() -> None:
    zeros, mul = op("zeros"), op("mul")
    checks = Checks(Thresholds())
    assert checks.findings(zeros, [tensor(zeros, "output", 0, 0)]) == []
    assert brief(checks.findings(mul, [tensor(mul, "output", 0, 0)])) == [("all zero", "output", False, False)]


def test_an_output_that_an_operator_never_writes_is_not_looked_at() -> None:
    checks = Checks(Thresholds())
    adam, momentum = op("AdamWeightDecay"), op("ApplyMomentum")
    given = (NAN, NAN)
    found = checks.findings(adam, [tensor(adam, "input", *given), tensor(adam, "output", 0, 0)])
    assert {(each.io, each.check) for each in found} == {("input", "nan")}
    found = checks.findings(momentum, [tensor(momentum, "input", *given), tensor(momentum, "output", 0, 0)])
    assert {(each.io, each.check) for each in found} >= {("input", "killed"), ("output", "all zero")}


def test_an_input_is_reported_once_unless_its_maker_reports_it() -> None:
    mul = op("mul")
    checks = Checks(Thresholds())
    parameter = tensor(mul, "input", NAN, source="Parameter.weight")
    of_operator = tensor(mul, "input", NAN, source="Default/exp-op0:0")
    unknown = tensor(mul, "input", NAN)
    assert brief(checks.findings(mul, [of_operator])) == []
    assert brief(checks.findings(mul, [unknown])) == [("nan", "input", False, False)]
    assert brief(checks.findings(mul, [unknown])) == []
    assert brief(checks.findings(mul, [parameter])) == [("nan", "input", False, False)]
