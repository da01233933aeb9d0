"""The table of docs/jax.md: each construct returns the same answer as without capture, and its operators are captured as documented."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from tests.jax.capture.recording import bits, recorded

X = np.arange(6, dtype=np.float32).reshape(2, 3)
MESH = Mesh(np.array(jax.devices()[:2]), ("d",))
SPEC = PartitionSpec("d")


def scan(carry: Any, rows: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.sin(c) * r, c.sum()), carry, rows)


def loop(count: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, jnp.cos(s[1])), (0, jnp.ones(3)))[1]


def while_in_scan(values: Any) -> Any:
    def inner(count: Any, value: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, value))[1]

    return lax.scan(lambda c, n: (inner(n, c), c.sum()), values, jnp.array([0, 3, 1, 40]))


def batched_while(counts: Any, values: Any) -> Any:
    return jax.vmap(lambda n, v: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, v))[1])(
        counts, values
    )


def branch(which: Any, values: Any) -> Any:
    return lax.switch(which, [jnp.sin, jnp.cos, jnp.tanh], values)


def scan_of_cond(values: Any) -> Any:
    def trip(carry: Any, flag: Any) -> Any:
        return lax.cond(flag, jnp.sin, jnp.cos, carry), None

    return lax.scan(trip, values, jnp.array([True, False, True]))[0]


@jax.custom_vjp
def doubled_gradient(value: Any) -> Any:
    return jnp.sin(value)


doubled_gradient.defvjp(lambda v: (jnp.sin(v), v), lambda v, g: (g * jnp.cos(v) * 2,))


@jax.custom_jvp
def tripled_tangent(value: Any) -> Any:
    return jnp.sin(value)


tripled_tangent.defjvp(lambda p, t: (jnp.sin(p[0]), t[0] * jnp.tanh(p[0])))


def sharded_sum(values: Any) -> Any:
    return jax.shard_map(lambda v: lax.psum(jnp.sin(v), "d"), mesh=MESH, in_specs=SPEC, out_specs=PartitionSpec())(
        values
    )


def narrow(values: Any) -> Any:
    return [values.astype(t) for t in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int4, jnp.uint4)]


def keys(key: Any) -> Any:
    return jax.random.split(key)[0], jax.random.normal(key, (3,))


# Name -> function, arguments, and the number of executions of each operator type.
TABLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, int]]] = {
    "jit": (lambda v: jnp.sin(v) * 2, (X,), {"sin": 1, "mul": 1}),
    "grad": (jax.grad(lambda v: jnp.tanh(v).sum()), (X,), {"tanh": 1}),
    "vmap": (jax.vmap(lambda v: jnp.dot(v, v)), (X,), {"dot_general": 1}),
    "scan": (scan, (np.ones(3, np.float32), X), {"sin": 2, "mul": 2, "reduce_sum": 2}),
    "reversed scan": (
        lambda v: lax.scan(lambda c, r: (c * r, c), jnp.ones(3), v, reverse=True),
        (X,),
        {"mul": 2},
    ),
    "while": (loop, (5,), {"cos": 5, "lt": 6}),
    "long while": (loop, (100,), {"cos": 100, "lt": 101}),
    "while in scan": (while_in_scan, (np.ones(3, np.float32),), {"tanh": 44, "lt": 48, "reduce_sum": 4}),
    "while of a batch": (batched_while, (np.array([1, 4, 2]), np.ones((3, 2), np.float32)), {"sin": 4, "lt": 5}),
    "cond": (lambda f, v: lax.cond(f, jnp.sin, jnp.cos, v), (False, X), {"cos": 1, "sin": 0}),
    "switch beyond the last": (branch, (7, X), {"tanh": 1, "cos": 0, "sin": 0}),
    "scan of cond": (scan_of_cond, (X,), {"sin": 2, "cos": 1}),
    "gradient of fori_loop": (
        jax.grad(lambda v: lax.fori_loop(0, 3, lambda _, a: jnp.tanh(a * v), v).sum()),
        (X,),
        {"tanh": 3},
    ),
    "checkpoint": (jax.grad(lambda w: jax.checkpoint(lambda w: jnp.sin(jnp.tanh(w)))(w).sum()), (X,), {"tanh": 2}),
    "custom_vjp": (jax.grad(lambda v: doubled_gradient(v).sum()), (X,), {"cos": 1}),
    "custom_jvp": (jax.grad(lambda v: tripled_tangent(v).sum()), (X,), {"tanh": 1}),
    "shard_map": (sharded_sum, (np.arange(8, dtype=np.float32),), {"sin": 2}),
    "gradient of shard_map": (jax.grad(lambda v: sharded_sum(v).sum()), (np.arange(8, dtype=np.float32),), {"sin": 2}),
    "narrow types": (narrow, (X,), {"convert_element_type": 5}),
    "keys": (keys, (jax.random.key(0),), {"random_split": 1}),
    "complex": (lambda v: jnp.fft.fft(v) * 1j, (X,), {"fft": 1}),
    "linear algebra": (lambda v: jnp.linalg.svd(v, full_matrices=False), (X,), {"svd": 1}),
    "associative scan": (lambda v: lax.associative_scan(jnp.add, v), (np.arange(8, dtype=np.float32),), {"add": 9}),
    "constants": (lambda v: v * np.array([1, 2, 3], np.float32), (X,), {"mul": 1}),
    "no elements": (lambda v: (v[:0], v * 2), (X,), {"mul": 1}),
    "a number of Python": (lambda v: v * 2, (2.5,), {"mul": 1}),
    # One operator each; the functions inside are not shown.
    "custom_linear_solve": (
        lambda b: jax.scipy.sparse.linalg.cg(lambda v: 2 * v, b)[0],
        (np.arange(3, dtype=np.float32),),
        {"custom_linear_solve": 1},
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_construct_gives_the_plain_answer_and_leaves_its_operators(name: str) -> None:
    function, given, expected = TABLE[name]
    plain = bits(jax.jit(partial(function))(*given))
    with recorded() as recording:
        answer = jax.jit(partial(function))(*given)
    assert bits(answer) == plain
    assert recording.recorder.warnings == []
    counts = recording.counts()
    assert {kind: counts[kind] for kind in expected} == expected
    (call,) = recording.ops(op_type="jit")
    recorded_answer = [
        recording.array(call, "output", slot) for slot, leaf in enumerate(jax.tree.leaves(answer)) if leaf.size
    ]
    for found, leaf in zip(recorded_answer, [leaf for leaf in jax.tree.leaves(answer) if leaf.size], strict=True):
        if leaf.dtype.name in ("float32", "int32", "complex64"):
            np.testing.assert_array_equal(found, np.asarray(leaf))


def test_values_of_a_loop_are_those_of_its_trips() -> None:
    function = jax.jit(lambda v: lax.scan(lambda c, r: (jnp.sin(c) + r, c), jnp.zeros(3), v))
    with recorded() as recording:
        function(X)
    carry = np.zeros(3, np.float32)
    sines, sums = recording.ops(op_type="sin"), recording.ops(op_type="add")
    assert [op.occurrence for op in sines] == [0, 1]
    for sine, added, row in zip(sines, sums, X, strict=True):
        np.testing.assert_array_equal(recording.array(sine, "input"), carry)
        np.testing.assert_array_equal(recording.array(added, "input", 1), row)
        carry = recording.array(added)
        np.testing.assert_array_equal(carry, recording.array(sine) + row)


def test_what_a_loop_carries_and_leaves_names_the_operators_in_its_body() -> None:
    def body(carried: Any, row: Any) -> Any:
        (_, second), turned = carried, jnp.sin(carried[1]) * row
        return (second, turned), turned

    def function(values: Any) -> Any:
        (_, last), stacked = lax.scan(body, (jnp.zeros(3), jnp.cos(values[0])), values)
        return last * 2, stacked + 1

    with recorded() as recording:
        jax.jit(function)(X)
    read = {
        (each.op.op_name, each.op.occurrence, each.slot): each.source
        for each in recording.writer.tensors
        if each.io == "input"
    }
    assert read["Default/scan/sin-op0", 0, 0] == "Default/cos-op0:0"
    assert read["Default/scan/sin-op0", 1, 0] == "Default/scan/mul-op0:0"
    assert read["Default/scan/mul-op0", 0, 1] == read["Default/scan/mul-op0", 1, 1] == "Parameter.values"
    assert read["Default/mul-op0", 0, 0] == read["Default/add-op0", 0, 0] == "Default/scan/mul-op0:0"


def test_shards_have_their_devices() -> None:
    with recorded() as recording:
        jax.jit(sharded_sum)(np.arange(8, dtype=np.float32))
    sines = recording.ops(op_type="sin")
    assert [op.device_id for op in sines] == [0, 1]
    np.testing.assert_array_equal(recording.array(sines[1], "input"), np.arange(4, 8, dtype=np.float32))


def test_values_on_several_devices_stay_when_the_call_is_over() -> None:
    given = jax.device_put(np.arange(4096, dtype=np.float32), jax.sharding.NamedSharding(MESH, PartitionSpec()))
    with recorded() as recording:
        for _ in range(3):
            jax.jit(lambda v: jnp.sqrt(v) + 1)(given)
    roots = [recording.array(op) for op in recording.ops(op_type="sqrt")]
    assert len(roots) == 3
    for root in roots:
        np.testing.assert_array_equal(root, np.sqrt(np.arange(4096, dtype=np.float32)))


def test_debug_nans_raise_for_the_program_and_not_for_the_twin() -> None:
    jax.config.update("jax_debug_nans", True)
    try:
        with recorded() as recording:
            answer = jax.jit(lambda v: jnp.where(v > 0, jnp.log(v), 0.0))(X)
            with pytest.raises(FloatingPointError):
                jax.jit(lambda v: jnp.log(v - 10))(X)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert np.isfinite(answer).all()
    assert recording.counts()["log"] == 1


def test_operators_outside_of_functions_are_recorded() -> None:
    values = jnp.asarray(X)
    with recorded() as recording:
        answer = jnp.tanh(values) + 1
    (tanh,) = recording.ops(op_type="tanh")
    (added,) = recording.ops(op_type="add")
    assert (tanh.kernel, tanh.line.partition(":")[0]) == ("lax::tanh", "test_constructs.py")
    np.testing.assert_array_equal(recording.array(added), answer)


def test_disable_jit_shows_every_operator() -> None:
    with jax.disable_jit(), recorded() as recording:
        jax.jit(lambda v: jnp.sin(v) * 2)(X)
    assert {op.op_type for op in recording.ops()} >= {"sin", "mul"}


def test_functions_that_were_compiled_ahead_are_seen() -> None:
    plain = jax.jit(lambda v: jnp.sin(v) * 2)(X)
    with recorded() as recording:
        compiled = jax.jit(lambda v: jnp.sin(v) * 2, donate_argnums=0).lower(X).compile()
        answer = compiled(X)
    assert recording.counts() == {"sin": 1, "mul": 1}
    np.testing.assert_array_equal(answer, plain)


def test_a_function_that_was_called_before_the_capture_is_seen() -> None:
    function = jax.jit(lambda v: jnp.cos(v) * 3)
    for _ in range(3):
        function(X)
    with recorded() as recording:
        function(X)
    assert recording.counts() == {"cos": 1, "mul": 1}
    function(X)


def test_an_error_of_the_program_stays_its_own() -> None:
    function = jax.jit(lambda v: v * 2, donate_argnums=0)
    with recorded():
        given = jnp.ones(3)
        function(given)
        with pytest.raises(RuntimeError, match="deleted"):
            function(given)


def test_donated_arguments_are_given_away_as_without_a_capture() -> None:
    function = jax.jit(lambda v: v * 2, donate_argnums=0)
    with recorded() as recording:
        for dtype in (jnp.float32, jnp.bfloat16, jnp.int8):
            given = jnp.ones(64, dtype)
            pointer = given.unsafe_buffer_pointer()
            answer = function(given)
            assert given.is_deleted()
            assert answer.unsafe_buffer_pointer() == pointer
    assert len(recording.ops(op_type="jit")) == 3


@pytest.mark.parametrize("choice", [True, False])
def test_a_branch_that_the_program_chooses_while_it_is_traced_is_recorded(*, choice: bool) -> None:
    def doubled_or_more(value: Any) -> Any:
        return lax.cond(choice, lambda each, by: each * by, lambda each, by: each + by, value, 2.0)

    def function(value: Any) -> Any:
        first = doubled_or_more(value)
        looped = lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, doubled_or_more(s[1])), (0, first))[1]
        scanned = lax.scan(lambda carry, _: (doubled_or_more(carry), None), looped, None, length=2)[0]
        return lax.switch(1, [jnp.sin, jnp.cos], scanned)

    x = np.arange(3, dtype=np.float32)
    with recorded() as recording:
        answer = jax.jit(function)(x)
    kind = "mul" if choice else "add"
    chosen = [op for op in recording.ops(op_type=kind) if recording.array(op).shape == (3,)]
    np.testing.assert_array_equal(recording.array(chosen[-1]), x * 32 if choice else x + 10)
    assert len(chosen) == 5
    np.testing.assert_array_equal(recording.array(recording.ops(op_type="cos")[-1]), answer)
    assert recording.counts()["sin"] == 0
    assert recording.recorder.warnings == []


def test_iterations_beyond_the_limit_are_counted_and_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opdump.adapters.jax.twin.MOST_TRIPS", 64)
    with recorded() as recording:
        answer = jax.jit(loop)(100)
    assert bits(answer) == bits(jax.jit(loop)(100))
    assert recording.counts()["cos"] == 64
    assert recording.recorder.tally.skipped["not observed"] > 0
