"""Trainings with and without a capture: the same bits, and every equation is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import Literal

from tests.jax.capture.recording import bits, recorded
from tests.jax.capture.trainings import TRAININGS

INLINED = {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2", "closed_call"}


def copied(state: Any) -> Any:
    """Copies of arrays: a step consumes its arguments."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, state)


def train(step: Any, state: Any, batch: tuple[Any, ...]) -> Any:
    function, losses = jax.jit(step, donate_argnums=0), []
    for _ in range(10):
        state, loss = function(state, *batch)
        losses.append(loss)
    return state, losses


def equations(jaxpr: Any) -> Iterator[str]:
    """The types of all equations, including those in calls and in bodies of loops."""
    for equation in jaxpr.eqns:
        inner = [each for each in equation.params.values() if hasattr(getattr(each, "jaxpr", each), "eqns")]
        if equation.primitive.name not in INLINED:
            yield equation.primitive.name
        if equation.primitive.name in INLINED | {"scan", "while"}:
            for each in inner[:1] if equation.primitive.name in INLINED else inner:
                yield from equations(getattr(each, "jaxpr", each))


@pytest.mark.parametrize("name", TRAININGS)
def test_ten_donating_steps_give_the_same_bits_and_leave_every_equation(name: str) -> None:
    step, state, batch = TRAININGS[name]()
    plain = bits(train(step, copied(state), batch))
    with recorded(steps="0|3-4", saved_data="statistic") as recording:
        captured = bits(train(step, copied(state), batch))
    assert captured == plain
    assert sorted({op.step for op in recording.ops(graph_id=1)}) == [0, 3, 4]
    assert [op.step for op in recording.ops(op_type="jit")] == [0, 3, 4]
    expected = Counter(equations(jax.jit(step).trace(state, *batch).jaxpr.jaxpr))
    found: dict[str, set[str]] = {}
    for op in recording.writer.ops:
        if op.graph_id == 1 and op.op_type not in ("jit", "Parameter"):
            found.setdefault(op.op_type, set()).add(op.op_name)
    assert {kind: len(names) for kind, names in found.items()} == dict(expected)
    named = [op for op in recording.ops(graph_id=1) if op.op_type != "Parameter"]
    without = [op.op_name for op in named if not op.stack]
    assert without == [], f"{len(without)} of {len(named)} have no line"
    assert {op.phase for op in named} >= {"forward", "backward"}


def test_values_of_a_convolutional_network_are_those_of_eager_evaluation() -> None:
    step, state, batch = TRAININGS["resnet"]()
    function = jax.jit(step)
    with recorded() as recording:
        function(state, *batch)
    expected = list(eagerly(function.trace(state, *batch).jaxpr, jax.tree.leaves((state, *batch))))
    ops = [op for op in recording.ops(graph_id=1) if op.op_type not in ("jit", "Parameter")]
    assert [op.op_type for op in ops] == [kind for kind, _ in expected]
    different = []
    for op, (_, values) in zip(ops, expected, strict=True):
        for slot, value in enumerate(values):
            if value.size and recording.array(op, "output", slot).tobytes() != np.asarray(value).tobytes():
                different.append(op.op_name)
    assert different == []


def eagerly(closed: Any, given: list[Any]) -> Generator[tuple[str, list[Any]], None, list[Any]]:
    """Evaluate each equation separately and return the results."""
    values = dict(zip(closed.jaxpr.invars, given, strict=True)) | dict(
        zip(closed.jaxpr.constvars, closed.consts, strict=True)
    )

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in closed.jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        if equation.primitive.name in INLINED:
            (inner, *_) = [each for each in equation.params.values() if hasattr(getattr(each, "jaxpr", each), "eqns")]
            closed_inner = inner if hasattr(inner, "jaxpr") else jax.extend.core.ClosedJaxpr(inner, ())
            evaluated = eagerly(closed_inner, inputs)
            outputs = yield from evaluated
        else:
            found = equation.primitive.get_bind_params(equation.params)
            functions, parameters = found if isinstance(found, tuple) else ((), found)
            result = equation.primitive.bind(*functions, *inputs, **parameters)
            outputs = list(result) if equation.primitive.multiple_results else [result]
            yield equation.primitive.name, outputs
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def test_parameters_are_filed_after_their_update() -> None:
    step, state, batch = TRAININGS["recurrent"]()
    with recorded() as recording:
        after, _ = jax.jit(step)(state, *batch)
    values = {op.op_name: recording.array(op) for op in recording.ops(op_type="Parameter")}
    assert set(values) == {"weights.input", "weights.state", "weights.output"}
    for name, value in values.items():
        np.testing.assert_array_equal(value, after[name.partition(".")[2]])


def test_the_deviation_of_the_twin_from_the_program_is_recorded() -> None:
    step, state, batch = TRAININGS["resnet"]()
    function = jax.jit(step)
    with recorded(saved_data="statistic") as recording:
        for _ in range(2):
            function(state, *batch)
    first, second = recording.ops(op_type="jit")
    facts = first.arguments["deviation of the twin"]
    assert facts["results"] == len(jax.tree.leaves(jax.eval_shape(step, state, *batch)))
    assert facts["relative"] < 1e-2
    assert "deviation of the twin" not in second.arguments
    inner = [op for op in recording.ops(graph_id=1) if op.op_type not in ("jit", "Parameter")]
    assert {op.arguments["source"] for op in inner} == {"twin"}
    outcomes = Counter(op.arguments["materialised"].partition(" ")[0] for op in inner)
    assert outcomes["fused"] > 0
    assert outcomes["yes"] > 0
    assert outcomes["unknown"] == 0
