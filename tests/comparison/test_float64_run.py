"""A program in float64, step by step: the state that a step left is available in the next, in full precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opdump
from opdump.comparison.execution import Execution, recorded
from opdump.comparison.float64_run import Array, Float64Run, KeptValues
from opdump.comparison.memory import Carried, StateTracker, read_step
from opdump.comparison.nodes import Node

pytestmark = pytest.mark.torch


def _input(_: Execution, node: Node, slot: int) -> Array | None:
    return recorded(node.inputs[slot])


def _output(_: Execution, node: Node, slot: int) -> Array | None:
    return recorded(node.outputs[slot])


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
        assert simulation.step(run, carried, _input, _output, asked)
        rows = run.inputs[node.index][1]
        assert rows.shape == (3, 4)
        assert not np.array_equal(rows, rows.astype(np.float32)), "divided in float64"
