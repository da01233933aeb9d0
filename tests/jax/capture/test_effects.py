"""Side effects of a function happen once, recorded or not: writes into memory, references, calls on the host, effects of packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

import opdump
from opdump.adapters.jax import twin as twins
from opdump.adapters.jax.flat import new_reference
from tests.jax.capture.recording import recorded

effects = importlib.import_module("jax._src.effects")
core = importlib.import_module("jax._src.core")

X = jnp.arange(3.0)
IS_OLD = jax.__version_info__ < (0, 7)


def _plainly(ref: Any) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        ref[...] = ref[...] * 2 + value
        return ref[...] + 1

    return function


def _in_scan(ref: Any) -> Callable[[Any], Any]:
    def trip(carry: Any, row: Any) -> Any:
        ref[...] = ref[...] * 2 + row
        return carry + ref[...], row

    return lambda value: lax.scan(trip, value, jnp.arange(4.0))[0]


def _in_branch(ref: Any) -> Callable[[Any], Any]:
    def changes(value: Any) -> Any:
        ref[...] = ref[...] * 2 + 1
        return value + ref[...]

    return lambda value: lax.cond(value.sum() > 0, changes, lambda each: each, value)


def _in_loop(ref: Any) -> Callable[[Any], Any]:
    def trip(_: Any, carry: Any) -> Any:
        ref[...] = ref[...] * 2 + 1
        return carry + ref[...]

    return lambda value: lax.fori_loop(0, 3, trip, value)


def _in_inner_function(ref: Any) -> Callable[[Any], Any]:
    inner = jax.jit(_plainly(ref))
    return lambda value: inner(value) + inner(value * 3)


def _in_scan_of_branches(ref: Any) -> Callable[[Any], Any]:
    branch = _in_branch(ref)

    def trip(carry: Any, _: Any) -> Any:
        return branch(carry), None

    return lambda value: lax.scan(trip, value, None, length=2)[0]


def _in_shards(ref: Any) -> Callable[[Any], Any]:
    mesh = jax.make_mesh((1,), ("d",))
    spec = PartitionSpec()
    shards: Callable[[Any], Any] = jax.shard_map(_plainly(ref), mesh=mesh, in_specs=spec, out_specs=spec)
    return shards


CLOSE_OVER = [_plainly, _in_scan, _in_branch, _in_loop, _in_inner_function, _in_scan_of_branches]


@pytest.mark.parametrize("shape", [(), (3,)], ids=["number", "vector"])
@pytest.mark.parametrize("is_ahead", [False, True], ids=["jit", "compiled ahead"])
@pytest.mark.parametrize("closing", CLOSE_OVER, ids=lambda each: each.__name__)
def test_memory_that_a_function_closes_over_is_written_once(
    closing: Callable[[Any], Any], *, is_ahead: bool, shape: tuple[int, ...]
) -> None:
    def run(calls: int) -> tuple[Any, Any]:
        ref, value = new_reference(jnp.ones(shape)), jnp.full(shape, 0.5)
        function = jax.jit(closing(ref))
        called = function.lower(value).compile() if is_ahead else function
        answers = [np.asarray(called(value)) for _ in range(calls)]
        return answers, np.asarray(ref[...])

    if is_ahead and IS_OLD:
        with recorded(), pytest.raises(ValueError, match="safe_zip"):
            run(1)  # JAX 0.6 cannot call it
        return
    expected, after = run(3)
    with recorded() as recording:
        answers, found = run(3)
    np.testing.assert_array_equal(found, after)
    np.testing.assert_array_equal(answers, expected)
    assert recording.recorder.warnings == []
    np.testing.assert_array_equal(recording.array(recording.ops(op_type="jit")[-1]), expected[-1])


def test_memory_that_shards_close_over_is_written_as_often_as_without_a_dump() -> None:
    def run() -> Any:
        ref = new_reference(jnp.ones(3))
        function = jax.jit(_in_shards(ref))
        for _ in range(2):
            function(X)
        return np.asarray(ref[...])

    try:
        expected = run()
    except Exception as error:  # noqa: BLE001  what this JAX refuses, it refuses under capture
        with recorded(), pytest.raises(type(error)):
            run()
        return
    with recorded():
        np.testing.assert_array_equal(run(), expected)


def test_a_random_key_that_a_function_closes_over_is_recorded_as_its_numbers() -> None:
    key = jax.random.key(3)
    function = jax.jit(lambda value: value + jax.random.uniform(key, (3,)))
    expected = function(X)
    with recorded() as recording:
        np.testing.assert_array_equal(function(X), expected)
    drawn = recording.ops(op_type="random_bits")[0]
    np.testing.assert_array_equal(recording.array(drawn, "input"), jax.random.key_data(key))


NOTED: list[float] = []


def _printed(value: Any) -> Any:
    jax.debug.print("sum {}", value.sum())
    return value * 2


def _printed_in_order(value: Any) -> Any:
    jax.debug.print("first {}", value.sum(), ordered=True)
    jax.debug.print("second {}", value.max(), ordered=True)
    return value * 2


def _called_back(value: Any) -> Any:
    jax.debug.callback(lambda each: NOTED.append(float(each)), value.sum())
    return value * 2


def _told_to_the_host(value: Any) -> Any:
    io_callback(lambda each: NOTED.append(float(each)), None, value.sum(), ordered=True)
    return value * 2


def _asked_from_the_host(value: Any) -> Any:
    def host(each: Any) -> Any:
        NOTED.append(float(each))
        return np.float32(len(NOTED))

    return value * io_callback(host, jax.ShapeDtypeStruct((), jnp.float32), value.sum())


def _printed_in_a_loop(value: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, each: _printed(each), value)


def _printed_by_a_solver(value: Any) -> Any:
    def solve(_: Any, each: Any) -> Any:
        jax.debug.print("solve {}", each.sum())
        return each / 2

    return lax.custom_linear_solve(lambda each: 2 * each, value, solve)


def _seen_where_it_lies(value: Any) -> Any:
    jax.debug.inspect_array_sharding(value, callback=lambda _: NOTED.append(0.0))
    return value * 2


class _Noting(effects.Effect):  # type: ignore[name-defined]
    def __str__(self) -> str:
        return "Noting"


_NOTE = Primitive("note")


def _of_a_package(value: Any) -> Any:
    """Calls a primitive with an effect class that JAX does not define."""
    return _NOTE.bind(value)


def _host_notes(value: Any) -> Any:
    NOTED.append(float(np.sum(value)))
    return np.asarray(value)


_NOTING = _Noting()
effects.lowerable_effects.add_type(_Noting)
_NOTE.def_effectful_abstract_eval(lambda aval: (aval, {_NOTING}))
mlir.register_lowering(
    _NOTE,
    mlir.lower_fun(
        lambda value: jax.pure_callback(_host_notes, jax.ShapeDtypeStruct(value.shape, value.dtype), value),
        multiple_results=False,
    ),
)


@pytest.mark.parametrize(
    "function",
    [
        _printed,
        _printed_in_order,
        _called_back,
        _told_to_the_host,
        _asked_from_the_host,
        _printed_in_a_loop,
        _printed_by_a_solver,
        _seen_where_it_lies,
        _of_a_package,
    ],
    ids=lambda each: each.__name__,
)
def test_an_effect_happens_as_often_as_without_a_dump(
    function: Callable[[Any], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    def run() -> tuple[list[Any], list[float], list[str]]:
        NOTED.clear()
        capfd.readouterr()
        compiled = jax.jit(lambda value: function(value) + 1)
        answers = [np.asarray(compiled(X + call)) for call in range(2)]
        jax.effects_barrier()
        return answers, list(NOTED), sorted(capfd.readouterr().out.splitlines())

    answers, noted, printed = run()
    with recorded() as recording:
        again = run()
    np.testing.assert_array_equal(again[0], answers)
    assert again[1:] == (noted, printed)
    assert noted or printed
    assert len(recording.ops(op_type="jit")) == 2


SAFE = {
    "RefEffect",
    "ReadEffect",
    "WriteEffect",
    "AccumEffect",
    "JaxprInputEffect",
    "InternalMutableArrayEffect",
    "NamedAxisEffect",
}
SAFE |= {"NoDCEEffect", "ShapeAssertionEffect", "ErrorEffect"}
"""Effects that a twin has on its own memory, or that nothing outside of a function sees."""
OF_THE_HOST = {"IOEffect", "OrderedIOEffect", "DebugEffect", "OrderedDebugEffect"}
"""Effects of equations that a twin leaves out, or whose results it receives from the program's run."""
REFUSED = {"FfiEffect", "GenericEffect", "BoxEffect", "InOutFeedEffect", "PrintEffect", "_Noting"}
REFUSED |= {"SingleSideCollectiveEffect", "CommsEffect", "SemaphoreEffect", "DelayEffect"}
"""Effects that may happen only once: functions with these have no twin."""


def test_every_effect_that_jax_knows_has_its_treatment() -> None:
    def below(kind: type[Any]) -> set[str]:
        kinds: list[type[Any]] = kind.__subclasses__()
        return {each for sub in kinds for each in (sub.__name__, *below(sub))}

    for module in ("callback", "debugging", "ffi", "checkify", "state.types", "export.shape_poly"):
        importlib.import_module(f"jax._src.{module}")
    assert below(effects.Effect) <= SAFE | OF_THE_HOST | REFUSED


GIVEN = np.arange(6, dtype=np.float32).reshape(2, 3)
LIKE_X = jax.ShapeDtypeStruct((2, 3), jnp.float32)


def test_a_pure_callback_runs_once_and_its_result_is_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    calls = []

    def host(value: Any) -> Any:
        calls.append(value)
        return np.sin(value)

    def function(value: Any) -> Any:
        jax.debug.print("sum {s}", s=value.sum())
        return jax.pure_callback(host, LIKE_X, value) * 2

    compiled = jax.jit(function)
    with recorded() as recording:
        answer = compiled(GIVEN)
        jax.effects_barrier()
    assert len(calls) == 1
    assert capfd.readouterr().out == "sum 15.0\n"
    np.testing.assert_array_equal(answer, np.sin(GIVEN) * 2)
    (called,), (product,) = recording.ops(op_type="pure_callback"), recording.ops(op_type="mul")
    np.testing.assert_array_equal(recording.array(called, "input"), GIVEN)
    np.testing.assert_array_equal(recording.array(called), np.sin(GIVEN))
    np.testing.assert_array_equal(recording.array(product), answer)
    assert recording.recorder.warnings == []


def test_random_numbers_of_the_host_in_a_loop_are_those_of_the_program() -> None:
    drawn: list[float] = []

    def draw() -> Any:
        drawn.append(float(len(drawn) ** 2))
        return np.float32(drawn[-1])

    def trip(carry: Any, row: Any) -> Any:
        number = io_callback(draw, jax.ShapeDtypeStruct((), jnp.float32), ordered=True)
        return carry + number * row, number

    function = jax.jit(lambda v: (lax.scan(trip, jnp.zeros(3), v), v * 2), donate_argnums=0)
    with recorded() as recording:
        for _ in range(2):
            (carried, numbers), _ = function(jnp.asarray(GIVEN))
    assert drawn == [0, 1, 4, 9]
    np.testing.assert_array_equal(numbers, [4, 9])
    calls = recording.ops(op_type="io_callback")
    assert [recording.array(op).item() for op in calls] == drawn
    assert [op.step for op in calls] == [0, 0, 1, 1]
    np.testing.assert_array_equal(recording.array(recording.ops(op_type="add")[-1]), carried)
    assert recording.recorder.warnings == []


def test_a_callback_without_results_runs_once_and_what_it_read_is_recorded() -> None:
    seen = []

    def function(value: Any) -> Any:
        io_callback(lambda v: seen.append(float(v)), None, value.sum())
        return value + 1

    with recorded() as recording:
        jax.block_until_ready(jax.jit(function)(GIVEN))
        jax.effects_barrier()
    assert seen == [15]
    (called,) = recording.ops(op_type="io_callback")
    assert recording.array(called, "input").item() == 15


def test_a_callback_may_call_jax() -> None:
    sine = jax.jit(jnp.sin)

    def host(value: Any) -> Any:
        return np.asarray(sine(np.asarray(value)))

    function = jax.jit(lambda v: jax.pure_callback(host, LIKE_X, v) * 2)
    with recorded() as recording:
        answer = function(GIVEN)
    assert recording.counts()["pure_callback"] == 1
    np.testing.assert_array_equal(answer, recording.array(recording.ops(op_type="mul")[-1]))


def test_a_callback_that_is_called_in_two_places_leaves_only_the_arguments_and_results_of_the_function() -> None:
    calls = []

    def host(value: Any) -> Any:
        calls.append(value)
        return np.sin(value)

    def function(value: Any) -> Any:
        return jax.pure_callback(host, LIKE_X, value) + jax.pure_callback(host, LIKE_X, value * 2)

    plain = jax.jit(function)(GIVEN)
    calls.clear()
    compiled = jax.jit(function)
    with recorded() as recording:
        answer = compiled(GIVEN)
    assert len(calls) == 2
    np.testing.assert_array_equal(answer, plain)
    assert any("pure_callback" in text for text in recording.recorder.warnings)
    assert recording.recorder.tally.skipped["not observed"] == len(compiled.trace(GIVEN).jaxpr.eqns)


def test_an_error_of_a_callback_is_the_programs() -> None:
    def host(value: Any) -> Any:
        raise ValueError("out of data")

    function = jax.jit(lambda v: jax.pure_callback(host, LIKE_X, jnp.cos(v)) * 2)

    def run() -> None:
        jax.block_until_ready(function(GIVEN))

    with recorded() as recording:
        with pytest.raises(Exception, match="out of data"):
            run()
        jax.jit(jnp.sin)(GIVEN)
    assert recording.recorder.warnings == []
    assert recording.counts(2)["sin"] + recording.counts(0)["sin"] == 1


@pytest.mark.parametrize("is_pure", [True, False])
def test_the_traceback_in_the_message_of_a_callbacks_error_has_no_frames_of_opdump(is_pure: bool) -> None:
    def host(value: Any) -> Any:
        raise ValueError("wrong")

    def function(value: Any) -> Any:
        return jax.pure_callback(host, LIKE_X, value) if is_pure else io_callback(host, LIKE_X, value)

    with recorded(), pytest.raises(Exception, match="wrong") as caught:
        jax.block_until_ready(jax.jit(function)(GIVEN))
    assert "in host" in str(caught.value)
    assert str(Path(opdump.__file__).parent) not in str(caught.value)


def scaled(ref: Any, factor: Any) -> Any:
    ref[...] = ref[...] * factor
    return jnp.sin(ref[...]).sum()


@pytest.mark.parametrize("most_bytes", [2**30, 1])
def test_reads_and_writes_of_a_ref_are_recorded(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MOST_BYTES", most_bytes)
    ref = new_reference(jnp.arange(3.0))
    function = jax.jit(scaled)
    with recorded() as recording:
        for _ in range(2):
            function(ref, 2.0)
    np.testing.assert_array_equal(ref[...], [0, 4, 8])
    assert recording.recorder.warnings == []
    products, sines = recording.ops(op_type="mul"), recording.ops(op_type="sin")
    np.testing.assert_array_equal([recording.array(op) for op in products], [[0, 2, 4], [0, 4, 8]])
    np.testing.assert_array_equal([recording.array(op, "input") for op in sines], [[0, 2, 4], [0, 4, 8]])
    assert recording.counts()["get"] == 4


def test_a_function_that_draws_from_the_generator_of_the_process_runs_once(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", steps="manual") as capture:
        jax.jit(lambda value: lax.rng_uniform(0.0, 1.0, (3,)) * value)(X).block_until_ready()
    assert {each.op.op_type for each in opdump.open(tmp_path).ops()} == {"jit"}
    assert capture.report is not None
    assert any("rng_uniform draws from a generator of the process" in warning for warning in capture.report.warnings)
