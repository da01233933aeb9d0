"""A function whose values exceed the memory limit runs in pieces: the same values, with few of them in memory at once."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from opdump.adapters.jax import twin as twins
from opdump.adapters.jax.flat import JaxprPosition, bytes_made, flattened
from tests.jax.capture.recording import Recording, bits, recorded
from tests.jax.capture.test_constructs import TABLE
from tests.jax.capture.trainings import TRAININGS

PIECES = 5
EXACT = ("resnet", "nnx_network", "recurrent", "sharded")
"""In the other trainings, XLA multiplies matrices differently when it compiles a part of the function."""


def values(recording: Recording) -> list[tuple[str, str, int, int, bytes]]:
    """Every tensor of the recorded functions, in order."""
    return [
        (each.op.op_name, each.io, each.slot, each.op.occurrence, np.asarray(each.payload.to_host()).tobytes())
        for each in recording.writer.tensors
        if each.payload is not None
    ]


def names(recording: Recording) -> list[tuple[str, str, str, dict[str, Any]]]:
    return [(op.op_name, op.phase, op.line, dict(op.arguments)) for op in recording.writer.ops if op.op_type != "jit"]


def twice(monkeypatch: pytest.MonkeyPatch, most_bytes: int, function: Any, *given: Any) -> tuple[Any, Any, int]:
    """The recordings of a call as a whole and in pieces, and the number of pieces."""
    pieces = []
    real = twins.Twin.run

    def run(twin: twins.Twin, arguments: Any) -> twins.TwinRun:
        pieces.append(twin.count)
        return real(twin, arguments)

    monkeypatch.setattr(twins.Twin, "run", run)
    with recorded() as whole:
        plain = bits(jax.jit(function)(*given))
    monkeypatch.setattr(twins, "MOST_BYTES", most_bytes)
    with recorded() as parted:
        assert bits(jax.jit(function)(*given)) == plain
    assert pieces[0] == 1
    return whole, parted, pieces[1]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_in_pieces_leaves_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, state, batch = TRAININGS[name]()
    flat = flattened(jax.jit(step).trace(state, *batch).jaxpr.jaxpr, JaxprPosition())
    most_bytes = sum(bytes_made(each.equation) for each in flat.steps) // PIECES
    whole, parted, count = twice(monkeypatch, most_bytes, step, state, *batch)
    assert count >= PIECES
    assert names(parted) == names(whole)
    assert len(parted.recorder.warnings) == len(
        whole.recorder.warnings
    )  # the warnings contain counts of rounding differences
    if name in EXACT:
        assert parted.recorder.warnings == whole.recorder.warnings
        assert [one[0] for one, other in zip(values(whole), values(parted), strict=True) if one != other] == []
    apart = []
    for one, other in zip(whole.writer.tensors, parted.writer.tensors, strict=True):
        if one.payload is None or other.payload is None or one.op.phase == "optimizer":
            continue  # Adam's first steps divide rounding errors by their own size
        a, b = np.asarray(one.payload.to_host()), np.asarray(other.payload.to_host())
        if a.dtype.kind == "f" and np.abs(a - b).max() > 1e-4 * np.abs(a).max():
            apart.append(one.op.op_name)
    assert apart == []


@pytest.mark.parametrize("name", TABLE)
def test_a_construct_in_pieces_leaves_the_same_operators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, given, expected = TABLE[name]
    whole, parted, _ = twice(monkeypatch, 1, partial(function), *given)
    assert {kind: parted.counts()[kind] for kind in expected} == expected
    assert names(parted) == names(whole)
    assert [each[:-1] for each in values(parted)] == [each[:-1] for each in values(whole)]


def test_few_values_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step, state, batch = TRAININGS["resnet"]()
    function = jax.jit(step)
    flat = flattened(function.trace(state, *batch).jaxpr.jaxpr, JaxprPosition())
    largest = max(bytes_made(each.equation) for each in flat.steps)
    total = sum(bytes_made(each.equation) for each in flat.steps)
    bound = total // 20
    monkeypatch.setattr(twins, "MOST_BYTES", bound)
    runs: list[list[weakref.ref[Any]]] = []
    handed_on: list[dict[int, Any]] = []
    at_once = []
    begin = twins.Twin._begin

    def noted(twin: Any, place: int, given: dict[int, Any]) -> Any:
        handed_on[:] = [*handed_on[-2:], dict(given)]
        run = begin(twin, place, given)
        runs.append([weakref.ref(each) for each in run.taps])
        handed_on.append(dict(given))
        kept = {id(each) for values in handed_on for each in values.values()}
        alive = {id(found): found.nbytes for refs in runs for ref in refs if (found := ref()) is not None}
        at_once.append(sum(size for each, size in alive.items() if each not in kept))
        return run

    monkeypatch.setattr(twins.Twin, "_begin", noted)
    with recorded(saved_data="statistic") as recording:
        function(state, *batch)
    assert len(runs) > 10
    assert recording.recorder.warnings == []
    # One piece runs while another is processed. Later pieces read less than a tenth of the values here.
    assert max(at_once) <= 2 * max(bound, largest)
    assert max(sum(each.nbytes for each in values.values()) for values in handed_on) < total / 10


def test_a_donated_argument_is_there_for_a_twin_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MOST_BYTES", 1)
    function = jax.jit(lambda v, key: (jnp.sin(v) * 2 + 1, jax.random.split(key)[0]), donate_argnums=(0, 1))
    given, key = jnp.ones(64), jax.random.key(3)
    with recorded() as recording:
        answer, _ = function(given, key)
    assert given.is_deleted()
    (call,) = recording.ops(op_type="jit")
    (sine,) = recording.ops(op_type="sin")
    np.testing.assert_array_equal(recording.array(call, "input"), np.ones(64, np.float32))
    np.testing.assert_array_equal(recording.array(sine, "input"), np.ones(64, np.float32))
    np.testing.assert_array_equal(recording.array(recording.ops(op_type="add")[-1]), np.asarray(answer))
    assert recording.recorder.warnings == []
