"""NaN and infinities that only one run leaves, though both programs agree in float64: only the operator that makes them
is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import opdump
from opdump.comparison.alignment import align
from opdump.comparison.end_state import leave_as_finite, not_finite
from opdump.comparison.result import Result
from tests.comparison.programs import Program, dumped, traced

pytestmark = pytest.mark.torch

Saved = Literal["statistic", "full"]
both_modes = pytest.mark.parametrize("saved", ["full", "statistic"])
both_ways = pytest.mark.parametrize("swapped", [False, True], ids=["in A", "in B"])


def compared(folder: Path, first: str, second: str, saved: Saved, *, swapped: bool) -> Result:
    pair = dumped(folder, "first", first, saved), dumped(folder, "second", second, saved)
    return opdump.compare(*reversed(pair)) if swapped else opdump.compare(*pair)


def named(result: Result) -> list[tuple[str, int]]:
    """Type and line of the named operator, in the run that has it."""
    found = [op for each in result.introduced for op in (each.a, each.b) if op is not None]
    return [(op.op_type, op.stack[0].line) for op in found]


TRAINING = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, labels = 200 * torch.randn(16, 8), torch.arange(16) % 4
for step in range(2):
    logits = model(data)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
UNDERFLOWS = TRAINING.replace(
    "torch.nn.functional.cross_entropy(logits, labels)",
    "-torch.log(torch.softmax(logits, 1)[torch.arange(16), labels]).mean()",
)


@both_ways
def test_the_operator_that_makes_a_loss_infinite_is_named(tmp_path: Path, swapped: bool) -> None:
    result = compared(tmp_path, UNDERFLOWS, TRAINING, "full", swapped=swapped)
    run = "B" if swapped else "A"
    assert (result.verdict, named(result)[0]) == ("divergent", ("log", 10))
    assert result.introduced[0].evidence.startswith(f"in {run} it produces NaN or infinities from finite numbers")


@both_ways
def test_the_line_that_makes_a_loss_infinite_is_named_by_statistics(tmp_path: Path, swapped: bool) -> None:
    result = compared(tmp_path, UNDERFLOWS, TRAINING, "statistic", swapped=swapped)
    assert (result.verdict, {line for _, line in named(result)}) == ("divergent", {10})


LATER = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=13.0)
data, labels = torch.randn(32, 8), torch.arange(32) % 4
for step in range(6):
    logits = model(data)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@both_modes
@both_ways
def test_the_step_is_found_in_which_one_run_begins_to_leave_nan(tmp_path: Path, saved: Saved, swapped: bool) -> None:
    underflows = LATER.replace(
        "torch.nn.functional.cross_entropy(logits, labels)",
        "-torch.log(torch.softmax(logits, 1)[torch.arange(32), labels]).mean()",
    )
    result = compared(tmp_path, underflows, LATER, saved, swapped=swapped)
    infinite = [
        found.op.step
        for found in opdump.open(tmp_path / "first").tensors()
        if (found.op.op_type, found.io, found.statistics["min"]) == ("log", "output", -np.inf)
    ]
    first = result.introduced[0]
    op = first.a or first.b
    assert op is not None
    assert (result.verdict, op.step, op.stack[0].line) == ("divergent", min(infinite), 10)
    assert op.step > 1, "the steps before are the same up to rounding"


INFERENCE = """
import torch

torch.manual_seed(0)
data, weight = 50 * torch.randn(6, 8), torch.randn(8, 5)
with torch.no_grad():
    scores = data @ weight
    answer = torch.log_softmax(scores, 1)
"""


@both_modes
@both_ways
def test_outputs_of_an_inference_that_are_infinite_in_only_one_run_are_named(
    tmp_path: Path, saved: Saved, swapped: bool
) -> None:
    lost = INFERENCE.replace("torch.log_softmax(scores, 1)", "torch.softmax(scores, 1).log()")
    result = compared(tmp_path, lost, INFERENCE, saved, swapped=swapped)
    assert (result.verdict, named(result)[0][1]) == ("divergent", 8)
    if saved == "full":
        assert named(result) == [("log", 8)]


MASKED = """
import torch

torch.manual_seed(0)
first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
data, mask = torch.randn(6, 8), torch.ones(6, 6, dtype=torch.bool).triu(1)
for step in range(2):
    scores = first(data) @ second(data).T
    weights = scores.masked_fill(mask, float("-inf")).softmax(1)
    loss = (weights @ data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
INFINITE = 'scores.masked_fill(mask, float("-inf"))'
LOOKED_AT = (
    MASKED.replace("for step in range(2):", "with torch.no_grad():")
    .partition("    optimizer")[0]
    .replace("    loss", "    answer")
)


@both_modes
@both_ways
@pytest.mark.parametrize(
    "other",
    [INFINITE, '(scores + torch.zeros(6, 6).masked_fill(mask, float("-inf")))', "scores.masked_fill(mask, -1e9)"],
    ids=["the same", "added", "a large number"],
)
def test_masks_are_no_difference(tmp_path: Path, saved: Saved, swapped: bool, other: str) -> None:
    assert MASKED.count(INFINITE) == 1
    result = compared(tmp_path, MASKED, MASKED.replace(INFINITE, other), saved, swapped=swapped)
    assert (result.verdict in ("identical", "benign"), list(result.introduced)) == (True, [])


@both_modes
@both_ways
def test_masks_of_an_inference_are_no_difference(tmp_path: Path, saved: Saved, swapped: bool) -> None:
    assert LOOKED_AT.count('float("-inf")') == 1
    large = LOOKED_AT.replace('float("-inf")', "-1e9")
    result = compared(tmp_path, LOOKED_AT, large, saved, swapped=swapped)
    assert (result.verdict in ("identical", "benign"), list(result.introduced)) == (True, [])


SCALED = """
import torch
from torch.nn import functional as F

torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, backoff_factor=2.0**-12)
data, labels = torch.randn(16, 8), torch.arange(16) % 4
for step in range(3):
    with torch.autocast("cpu", torch.float16):
        logits = model(data)
    loss = F.cross_entropy(logits.float(), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@both_modes
@both_ways
def test_steps_that_both_runs_skip_since_gradients_overflow_are_no_difference(
    tmp_path: Path, saved: Saved, swapped: bool
) -> None:
    other = SCALED.replace(
        "F.cross_entropy(logits.float(), labels)", "F.nll_loss(logits.float().log_softmax(1), labels)"
    )
    assert other != SCALED
    result = compared(tmp_path, SCALED, other, saved, swapped=swapped)
    steps = [
        {"positive inf count", "negative inf count"}
        & {
            name
            for tensor in opdump.open(tmp_path / "first").tensors(step=step)
            for name, n in tensor.statistics.items()
            if n
        }
        for step in (0, 1)
    ]
    assert bool(steps[0]) > bool(steps[1]), "only the first step overflows"
    assert (result.verdict in ("identical", "benign"), list(result.introduced)) == (True, [])


@pytest.mark.parametrize(
    ("program", "more", "saved"),
    [
        (INFERENCE, "(scores * 1e38).sum().item()", "full"),
        (INFERENCE, "looked_at = scores.softmax(1).log()", "full"),
        (TRAINING, "(logits.detach() * 1e38).sum().item()", "full"),
        (TRAINING, "(logits.detach() * 1e38).sum().item()", "statistic"),
    ],
)
def test_what_one_program_alone_looks_at_may_be_infinite(tmp_path: Path, program: str, more: str, saved: Saved) -> None:
    result = compared(tmp_path, program, f"{program}    {more}\n", saved, swapped=False)
    assert (result.verdict in ("identical", "benign"), list(result.introduced)) == (True, [])


def suspects(folder: Path, first: Program, second: Program) -> list[tuple[str, str]]:
    """Types and evidence of the suspects."""
    a, b = traced(folder / "a", first), traced(folder / "b", second)
    found = not_finite(a, b, align(a, b))
    assert leave_as_finite(a, b) == (not found)
    nodes = [(each.a if each.evidence.startswith("in A") else each.b, each.evidence) for each in found]
    return [(node.bare_type, evidence) for node, evidence in nodes if node is not None]


def masked_exponents(x: Any) -> None:
    masked = (x * 200).masked_fill(x < x.mean(1, keepdim=True), -np.inf)
    exponents = masked.exp()
    exponents / exponents.sum(1, keepdim=True)


def masked_softmax(x: Any) -> None:
    (x * 200).masked_fill(x < x.mean(1, keepdim=True), -np.inf).softmax(1)


def test_infinities_that_both_runs_have_on_the_way_are_not_named(tmp_path: Path) -> None:
    (kernel, evidence), *others = suspects(tmp_path, masked_exponents, masked_softmax)
    assert (kernel, others) == ("exp", [])
    assert evidence == "in A it produces NaN or infinities, which reach the end of the step; B ends without any"


def test_where_both_or_neither_leave_infinities_nothing_is_named(tmp_path: Path) -> None:
    assert suspects(tmp_path / "both", lambda x: (x * 0).log(), lambda x: (x - x).log2()) == []
    assert suspects(tmp_path / "neither", lambda x: x.abs().log(), lambda x: x.abs().log2()) == []
