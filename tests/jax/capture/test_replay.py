"""Recorded operators of JAX run again, compiled or not; their inputs have the bits of the outputs that they name, and literals are arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opdump
from opdump.adapters.replay import AS_RECORDED, required_replayer
from opdump.catalog.catalog import Catalog, open_dump
from opdump.catalog.query import Execution
from opdump.comparison.execution import recorded
from opdump.errors import CannotReplayError
from opdump.plan import DumpPlan
from tests.replaying.written_scripts import check_scripts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 6, 6, 3)).astype(np.float32)
KERNEL = RNG.normal(size=(3, 3, 3, 4)).astype(np.float32)
W = RNG.normal(size=(4, 5)).astype(np.float32)
IDS = np.array([3, 0, 4, 3])


def loss(kernel: Any, weights: Any) -> Any:
    h = jax.lax.conv_general_dilated(X, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = jax.nn.relu(h).max((1, 2))
    rows = jnp.concatenate([h, jnp.flip(h, 0)]) @ weights
    picked = jnp.take_along_axis(jax.nn.log_softmax(rows), jnp.asarray(IDS)[:, None], 1)
    narrow = (rows.astype(jnp.bfloat16) * 0.5).astype(jnp.float32)
    return -picked.mean() + 0.1 * jnp.var(narrow) + jnp.sort(rows, 1)[:, -1].sum() ** 3


def step(kernel: Any, weights: Any) -> Any:
    gradients = jax.grad(loss, (0, 1))(kernel, weights)
    return [value - 0.1 * jnp.clip(each, -1.0, 1.0) for value, each in zip((kernel, weights), gradients, strict=True)]


def drawn() -> Any:
    key = jax.random.fold_in(jax.random.key(3), 4)
    return jax.random.normal(key, (3, 2)), jnp.cumsum(jax.random.uniform(key, (4,)))


def executions(path: Path, program: Callable[..., Any], *given: Any) -> list[Execution]:
    with opdump.capture(DumpPlan(path=path, saved_data="full"), steps="manual"):
        jax.block_until_ready(program(*map(jnp.asarray, given)))
    dump: Catalog = open_dump(path)
    found = dump.ops(step=0, rank=dump.ranks[0])
    return [each for each in found if each.op.kernel not in ("jax::jit", "Parameter")]


PROGRAMS = [(step, (KERNEL, W)), (jax.jit(step), (KERNEL, W)), (jax.jit(drawn), ())]
NAMES = ["plain", "compiled", "compiled draws"]


@pytest.mark.parametrize(("program", "given"), PROGRAMS, ids=NAMES)
def test_every_operator_runs_again_with_the_recorded_outputs(
    program: Callable[..., Any], given: tuple[Any, ...], tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    for each in executions(tmp_path / "dump", program, *given):
        inputs, outputs = each.by_slot()
        values = {slot: recorded(record) for slot, record in inputs.items()}
        known = {slot: value for slot, value in values.items() if value is not None}
        counts["all"] += 1
        for dtype in ("float64", "float32", AS_RECORDED):
            done = required_replayer(each.op).run(each.op, inputs, known, dtype=dtype)
            counts[dtype] += all(_is_near(recorded(record), done.outputs[slot]) for slot, record in outputs.items())
    assert counts["all"] > 10
    # In float64, a cast to bfloat16 changes nothing, and a bit of a random number decides about the others.
    assert counts[AS_RECORDED] == counts["all"]
    assert counts["all"] - min(counts["float64"], counts["float32"]) <= 2


def _is_near(expected: Any, found: Any) -> bool:
    return expected.shape == found.shape and np.allclose(expected, found, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("program", "given"), PROGRAMS[:2], ids=NAMES[:2])
def test_each_input_has_the_bits_of_the_output_that_it_names(
    program: Callable[..., Any], given: tuple[Any, ...], tmp_path: Path
) -> None:
    made: dict[str, bytes] = {}
    unmade = []
    for each in executions(tmp_path / "dump", program, *given):
        inputs, outputs = each.by_slot()
        for record in inputs.values():
            if record.source in made:
                assert made[record.source] == record.numpy().tobytes(), record.source
            else:
                unmade.append(record.numpy().size)
        made |= {f"{each.op.op_name}:{slot}": record.numpy().tobytes() for slot, record in outputs.items()}
    # Only what the program holds is read from outside: the image, the ids, and the two parameters.
    assert set(unmade) <= {X.size, IDS.size, KERNEL.size, W.size}


def test_a_number_of_the_program_is_an_argument_as_in_a_compiled_function(tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        return 2.0 * x - 3.0, jnp.where(x > 0, x, -1.0)

    (plain, compiled) = (
        [each.op for each in executions(tmp_path / name, run, W)]
        for name, run in (("plain", program), ("compiled", jax.jit(program)))
    )
    numbers = [
        {
            name: value
            for op in ops
            if op.op_type in ("mul", "sub")
            for name, value in op.arguments.items()
            if name[0] == "x"
        }
        for ops in (plain, compiled)
    ]
    assert numbers == [{"x0": 2.0, "x1": 3.0}] * 2


def test_a_script_runs_an_operator_without_opdump_and_prints_its_distance_from_float64(tmp_path: Path) -> None:
    made = {"trained": (jax.jit(step), (KERNEL, W)), "drawn": (jax.jit(drawn), ())}
    of_kernel: dict[str, tuple[Path, Execution]] = {}
    for name, (program, given) in made.items():
        for each in executions(tmp_path / name, program, *given):
            of_kernel.setdefault(each.op.kernel, (tmp_path / name, each))
    written: list[Path] = []
    for kernel, (dump, each) in of_kernel.items():
        emit = partial(opdump.replay, dump, each.op.op_name, occurrence=each.op.occurrence)
        if kernel.startswith("lax::random_"):
            with pytest.raises(CannotReplayError, match="computes random keys"):
                emit(emit=tmp_path / "keys.py")
        else:
            written.append(tmp_path / f"repro_{len(written)}.py")
            emit(emit=written[-1])
    assert len(written) > 25
    check_scripts(written)
