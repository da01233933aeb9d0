"""Every configuration that MindSpore judged gets the same verdict here, except for named differences with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from opdump.errors import ConfigError, DumpPathError, OpdumpError
from opdump.plan import DumpPlan
from tests.config.verdicts import load, run, says


class Difference(NamedTuple):
    """`error` is what opdump raises if MindSpore accepts; None if opdump accepts and MindSpore does not."""

    error: type[OpdumpError] | None
    reason: str


NOTHING_MATCHES = Difference(ConfigError, "an iteration item that can match nothing is an error")
UNWRITABLE = Difference(DumpPathError, "an unwritable path stops at once")
MARKED = Difference(None, "dump_mode 2 works on every device")
STATISTICS = Difference(None, "statistics work where MindSpore's CPU writer has none")
NO_CONFIG = Difference(
    ConfigError, "MindSpore does not dump without a config; asking opdump for a plan of none is an error"
)

REAL_RUNS: Mapping[str, Difference] = MappingProxyType(
    {
        "dump_mode_2": MARKED,
        "iter_dash_edges": NOTHING_MATCHES,
        "iter_huge": NOTHING_MATCHES,
        "iter_reversed": NOTHING_MATCHES,
        "path_is_file": UNWRITABLE,
        "path_unwritable": UNWRITABLE,
    }
)
OBSERVED: Mapping[str, Difference] = MappingProxyType(
    {
        "empty_env": NO_CONFIG,
        "saved 'statistic'": STATISTICS,
        "saved 'full'": STATISTICS,
        "opdump section": Difference(ConfigError, "the section is opdump's own, and checked like the others"),
        **{
            f"iter {text!r}": NOTHING_MATCHES
            for text in ("|", "||", "-", "1-", "-1", "1-0", "18446744073709551616", "0-1-2", "0--1")
        },
    }
)


def _check(case: Mapping[str, Any], difference: Difference | None, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(case, root, monkeypatch)
    accepted = case["exit_code"] == 0
    if difference is not None:
        assert accepted == (difference.error is not None), "the table of differences is out of date"
        if difference.error is None:
            assert isinstance(outcome, DumpPlan), difference.reason
        else:
            assert isinstance(outcome, difference.error), difference.reason
    elif accepted:
        assert isinstance(outcome, DumpPlan), outcome
    else:
        assert isinstance(outcome, ConfigError)
        assert says(outcome, case["exception"]), f"{outcome} does not say {case['exception']}"


def _name(case: Mapping[str, Any]) -> str:
    return f"{case.get('mindspore', '2.10.0')}-{case['name']}"


@pytest.mark.parametrize("case", load("verdicts.json"), ids=_name)
def test_a_config_of_a_real_run_gets_mindspores_verdict(
    case: Mapping[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(case, REAL_RUNS.get(case["name"]), root, monkeypatch)


@pytest.mark.parametrize("case", load("observed_verdicts.json"), ids=_name)
def test_a_config_at_the_edge_gets_mindspores_verdict(
    case: Mapping[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(case, OBSERVED.get(case["name"]), root, monkeypatch)


@pytest.mark.parametrize(("file", "table"), [("verdicts.json", REAL_RUNS), ("observed_verdicts.json", OBSERVED)])
def test_every_difference_names_a_case(file: str, table: Mapping[str, Difference]) -> None:
    assert table.keys() <= {case["name"] for case in load(file)}
