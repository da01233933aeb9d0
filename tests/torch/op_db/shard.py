"""Runs a share of PyTorch's operator samples, plain and under capture."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.testing._internal.common_methods_invocations import op_db

from opdump.adapters.base import Settings
from opdump.adapters.torch.adapter import ADAPTER
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from tests.torch.op_db.bits import differences
from tests.torch.op_db.samples import Case, Run, cases
from tests.torch.op_db.statistics import CheckedInMemory

# They return uninitialised memory.
UNINITIALISED = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))
_REPETITIONS = 40
_AT_ONCE = 5
"""Operators per capture: beginning a capture takes longer than an operator's samples."""


@dataclass(slots=True)
class Outcome:
    """What ran, and what was found."""

    counts: Counter[str] = field(default_factory=Counter)
    differing: dict[str, str] = field(default_factory=dict)
    """Operators whose results differ under capture, with the first difference."""
    failing: dict[str, str] = field(default_factory=dict)
    """Operators that fail only under capture, or fail differently."""
    wrong_statistics: list[str] = field(default_factory=list)


Share = tuple[int, int]
"""Index of the share and number of shares: (0, 3) takes every third one."""


def run_shard(operators: Share, types: Share, *, samples: int | None, in_place: bool) -> Outcome:
    """Run a share of the operators, each with a share of its dtypes."""
    outcome = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples use deprecated functions
        share = op_db[operators[0] :: operators[1]]
        for start in range(0, len(share), _AT_ONCE):
            _run_operators(share[start : start + _AT_ONCE], types, outcome, samples, in_place=in_place)
    return outcome


def _run_operators(
    operators: list[Any], types: Share, outcome: Outcome, samples: int | None, *, in_place: bool
) -> None:
    counts = outcome.counts
    found: list[tuple[str, Case, Run | Exception]] = []
    for number, operator in enumerate(operators):
        name = f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else operator.name
        counts["operators of op_db"] += 1
        own = sorted(operator.supported_dtypes("cpu"), key=str)
        # Each operator begins at another dtype; otherwise a share would have the same dtypes of all operators.
        for dtype in own[(types[0] + number) % types[1] :: types[1]]:
            counts["pairs"] += 1
            found += [
                (name, case, _attempt(case.copied())) for case in cases(operator, dtype, samples, in_place=in_place)
            ]
    copies = [case.copied() for _, case, _ in found]
    writer = CheckedInMemory()
    plan = DumpPlan(path=Path("unused"), saved_data="full", statistic_category=(*_CATEGORIES,))
    captured = []
    with ADAPTER.attach(Recorder(plan, writer, ADAPTER.reader(plan)), Settings(steps="manual")) as clock:
        for case in copies:
            captured.append(_attempt(case))
            clock.manual_step()
    for (name, case, plain), run in zip(found, captured, strict=True):
        _detector(name, case, plain, run, outcome)
    counts.update(writer.counts)
    outcome.wrong_statistics += writer.wrong


_CATEGORIES = (
    *("max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count"),
    *("negative inf count", "positive inf count", "zero count", "l2norm"),
)


def _attempt(case: Case) -> Run | Exception:
    try:
        return case.run()
    except Exception as error:  # noqa: BLE001  # an operator that refuses a sample must also refuse it under capture
        return error


def _detector(name: str, case: Case, plain: Run | Exception, captured: Run | Exception, outcome: Outcome) -> None:
    counts = outcome.counts
    counts[f"samples, {case.form}"] += 1
    if isinstance(plain, Exception) or isinstance(captured, Exception):
        if type(plain) is type(captured):
            counts["samples that PyTorch refuses"] += 1
        else:
            outcome.failing.setdefault(name, f"{case.form}: {plain!r} plainly, {captured!r} under capture")
        return
    if plain.gradients is not None:
        counts["samples with gradients"] += 1
    if name in UNINITIALISED:
        counts["samples of uninitialised memory"] += 1
        return
    found = differences(plain, captured)
    if not found:
        return
    if any(differences(plain, case.copied().run()) for _ in range(_REPETITIONS)):
        counts["samples that differ from themselves"] += 1
    else:
        outcome.differing.setdefault(name, f"{case.form}: {found[0]}")
