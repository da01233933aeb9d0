"""A dump of statistics whose steps are passed on in columns equals the dump of the same steps, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import opdump
from opdump.adapters.host import ChosenTensors
from opdump.adapters.jax import twin as twins
from opdump.adapters.jax.flat import JaxprPosition, bytes_made, flattened
from opdump.catalog.catalog import open_dump
from opdump.recorder import Recorder
from opdump.records import record_of
from tests.jax.capture.test_constructs import TABLE
from tests.jax.capture.trainings import TRAININGS

STEPS = 4
X = np.ones(4, np.float32)
Patch = pytest.MonkeyPatch
Left = tuple[dict[str, bytes], list[Any], list[Any], tuple[Any, ...]]


def left_by(place: Path, program: Callable[[], None]) -> Left:
    """The tables, operators, tensors and totals of a dump."""
    with opdump.capture(path=str(place), saved_data="statistic", iteration="all", framework="jax") as dump:
        program()
    report = dump.report
    assert report is not None
    found = open_dump(place)
    tables = {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*.csv"))}
    return (
        tables,
        [each.op for each in found.ops()],
        [record_of(each) for each in found.tensors()],
        (report.executed, report.captured, report.tensors, report.skipped, report.verdict, report.warnings),
    )


def assert_same(program: Callable[[], None], place: Path, monkeypatch: Patch) -> tuple[Left, int, int]:
    """The content of the dump, how often columns were passed on, and how often arguments were read before the program's function consumed them."""
    taken: list[bool] = []
    ahead: list[Any] = []
    left: list[Left] = []
    take_block, read_ahead = Recorder.take_block, Recorder.read_ahead

    def noted(recorder: Recorder, sequence: Any, step: int, timestamps: Any, tensors: Any) -> bool:
        taken.append(isinstance(tensors, ChosenTensors))
        return take_block(recorder, sequence, step, timestamps, tensors)

    def noted_ahead(recorder: Recorder, tensors: Any) -> None:
        ahead.append(tensors)
        read_ahead(recorder, tensors)

    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr(Recorder, "take_block", noted)
    monkeypatch.setattr(Recorder, "read_ahead", noted_ahead)
    for how in ("one by one", "columns"):
        with monkeypatch.context() as patched:
            if how == "one by one":
                patched.setattr(Recorder, "takes_blocks", False)
            left.append(left_by(place / how, program))
        assert bool(taken) == (how == "columns")
    for one, other in zip(*left, strict=True):
        assert one == other
    return left[1], sum(taken), len(ahead)


def steps_of(name: str, *, bad: int = -1) -> tuple[Callable[[], None], Any, tuple[Any, ...]]:
    """A program that trains; in the step `bad`, its first input is NaN."""
    step, first, batch = TRAININGS[name]()
    function = jax.jit(step, donate_argnums=0)

    def program() -> None:
        state = jax.tree.map(jnp.copy, first)
        for number in range(STEPS):
            given = batch if number != bad else (np.full_like(batch[0], np.nan), *batch[1:])
            state, loss = function(state, *given)
            jnp.sin(loss) * 2  # operators outside of compiled functions

    return program, step, (first, *batch)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_in_columns_equals_one_operator_by_operator(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    program, _, _ = steps_of(name)
    (tables, _, tensors, _), taken, ahead = assert_same(program, tmp_path, monkeypatch)
    assert taken >= STEPS
    # Arguments are read ahead once all operators have run, and those without data are listed.
    assert ahead >= STEPS - 2
    assert len([path for path in tables if path.endswith("statistic.csv")]) >= STEPS
    assert len(tensors) > 100


@pytest.mark.parametrize("name", ["resnet", "recurrent"])
def test_a_training_in_pieces(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    program, step, given = steps_of(name)
    flat = flattened(jax.jit(step).trace(*given).jaxpr.jaxpr, JaxprPosition())
    monkeypatch.setattr(twins, "MOST_BYTES", sum(bytes_made(each.equation) for each in flat.steps) // 4)
    _, taken, ahead = assert_same(program, tmp_path, monkeypatch)
    assert taken >= 4 * STEPS
    assert not ahead


def test_rows_of_arguments_that_are_taken_away_are_copied(tmp_path: Path, monkeypatch: Patch) -> None:
    """A loop reads the rows of one argument, a branch follows another, and the loop reads a third as a whole."""

    def step(state: dict[str, Any], x: Any) -> dict[str, Any]:
        def layer(carry: Any, row: Any) -> tuple[Any, Any]:
            made = jnp.tanh(carry * row + state["bias"])
            return lax.cond(state["which"] > 0, jnp.sin, jnp.cos, made), made

        last, made = lax.scan(layer, x, state["rows"])
        rows = state["rows"] - 0.1 * made * last.sum()
        return {"rows": rows, "bias": state["bias"] * 0.5, "which": state["which"] - 1}

    function = jax.jit(step, donate_argnums=0)

    def program() -> None:
        state = {"rows": jnp.ones((3, 4)), "bias": jnp.full(4, 0.25), "which": jnp.array(2)}
        for _ in range(2 * STEPS):
            state = function(state, X)

    (_, operators, _, _), _, ahead = assert_same(program, tmp_path, monkeypatch)
    assert {"sin", "cos"} <= {op.op_type for op in operators}
    assert 2 <= ahead < 2 * STEPS  # once both branches have run


def test_a_nan_in_a_later_step(tmp_path: Path, monkeypatch: Patch) -> None:
    program, _, _ = steps_of("resnet", bad=2)
    (_, _, _, totals), _, _ = assert_same(program, tmp_path, monkeypatch)
    assert (totals[4].kind, totals[4].step) == ("nan", 2)


CONSTRUCTS = (
    *("scan", "reversed scan", "while", "while in scan", "while of a batch", "cond", "scan of cond", "shard_map"),
    *("narrow types", "keys", "complex", "constants", "no elements", "a number of Python"),
)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    function, given, _ = TABLE[name]
    called = jax.jit(function)

    def program() -> None:
        for _ in range(STEPS):
            called(*given)

    assert_same(program, tmp_path, monkeypatch)


def test_two_functions_and_two_lines_that_call_them(tmp_path: Path, monkeypatch: Patch) -> None:
    @jax.jit
    def scaled(x: Any) -> Any:
        return jnp.tanh(x) * 2

    update = jax.jit(lambda state, x: {"w": state["w"] - 0.1 * x.sum() * state["w"]}, donate_argnums=0)

    def program() -> None:
        state = {"w": jnp.ones(3)}
        for number in range(6):
            x = scaled(np.float32(number))
            x = scaled(x)
            state = update(state, x)

    (_, operators, _, _), taken, ahead = assert_same(program, tmp_path, monkeypatch)
    assert taken > 20
    assert ahead == 5
    calls = [op for op in operators if op.op_name == "Default/scaled-jit"]
    assert len({op.stack for op in calls}) == 2


def test_a_capture_that_ends_within_a_step(tmp_path: Path, monkeypatch: Patch) -> None:
    first = jax.jit(lambda x: jnp.sin(x) + 1)
    second = jax.jit(lambda x: jnp.cos(x) * 2)

    def program() -> None:
        for number in range(STEPS):
            first(X)
            if number < STEPS - 1:
                second(X)

    (_, operators, _, _), _, _ = assert_same(program, tmp_path, monkeypatch)
    assert {op.op_type for op in operators if op.step == STEPS - 1} == {"jit", "sin", "add"}
