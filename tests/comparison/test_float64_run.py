"""A program in float64, step by step, and what a step finds of earlier steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import opdump
from opdump.comparison.execution import Execution, recorded_input, recorded_output
from opdump.comparison.float64_run import Float64Run, KeptValues
from opdump.comparison.integrity import Integrity, check_integrity, were_left_alike
from opdump.comparison.memory import Carried, StateTracker, read_step
from opdump.comparison.trace import Trace
from tests.comparison.hand_made import node, record

pytestmark = pytest.mark.torch


def test_rows_that_a_step_did_not_read_are_there_in_the_next(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        data = torch.randn(9, 4)
        data.div_(data.std())
        for step in range(3):
            net(data[step::3]).sum().backward()
            optimizer.step()
    catalog = opdump.open(tmp_path)
    traces = [read_step(catalog, step) for step in range(3)]
    tracker, simulation = StateTracker(), Float64Run()
    found = [tracker.step(trace) for trace in traces]
    for trace, carried, following in zip(traces, found, [*found[1:], Carried()], strict=True):
        run = Execution(trace)
        (node,) = (node for node in trace.nodes if node.bare_type == "addmm")
        asked = KeptValues(frozenset(), following.wanted, {node.index})
        assert simulation.step(run, carried, recorded_input, recorded_output, asked)
        rows = run.inputs[node.index][1]
        assert rows.shape == (3, 4)
        assert not np.array_equal(rows, rows.astype(np.float32)), "divided in float64"


def test_a_state_that_a_step_left_out_is_known_again(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    states = [torch.zeros(8), torch.zeros(8)]
    with opdump.capture(path=str(tmp_path), saved_data="full") as dump:
        for step in range(4):
            states[step % 2].mul_(0.9).add_(torch.randn(8))
            dump.step()
    catalog = opdump.open(tmp_path)
    before: Integrity | None = None
    ages = []
    for step in range(4):
        trace = read_step(catalog, step)
        found = check_integrity(trace, before)
        (node,) = (node for node in trace.nodes if node.bare_type == "mul")
        ages.append((found.came_earlier.get((node.index, 0)), (node.index, 0) in found.found_again))
        before = found
    assert ages == [(None, False), (None, False), (2, True), (2, True)]


def test_inputs_are_left_alike_where_both_are_as_old() -> None:
    at = (0, 0)
    older, old, fresh, none = (
        Integrity(came_earlier={at: 3}),
        Integrity(came_earlier={at: 2}),
        Integrity(came_from={at: frozenset({5})}),
        Integrity(),
    )
    assert were_left_alike(old, at, old, at, {})
    assert not were_left_alike(old, at, older, at, {})
    assert not were_left_alike(fresh, at, old, at, {5: 5})
    assert not were_left_alike(none, at, old, at, {})
    assert not were_left_alike(none, at, fresh, at, {})
    assert were_left_alike(fresh, at, fresh, at, {5: 5})
    other = Integrity(came_from={at: frozenset({7})})
    assert not were_left_alike(fresh, at, other, at, {5: 5, 6: 7})


@pytest.mark.parametrize("has_output", [True, False])
def test_an_operator_with_an_unknown_input_keeps_its_recorded_output(has_output: bool) -> None:
    """Dumps have the counter of an optimizer only as it was after the operator."""
    before = replace(record([4.0], 0), payload=None)
    after = record([5.0], 0, io="output")
    count = node(0, "add", [before], [after if has_output else replace(after, payload=None)], "optimizer")
    run = Execution(Trace(0, 0, [count]))
    done = Float64Run().step(run, Carried(), recorded_input, recorded_output, KeptValues(frozenset({0})))
    assert done == has_output
    held = run.memory.storage(0)
    assert (held is not None and held.values.tolist() == [5.0]) == has_output
