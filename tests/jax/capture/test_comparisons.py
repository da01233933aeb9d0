"""Comparisons of JAX runs: different results are never reported as benign, and equal results never as divergent, compiled or not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.comparison.result import Result
from opdump.plan import DumpPlan

Program = Callable[[], Any]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 4)).astype(np.float32)
W = RNG.normal(size=(4, 4)).astype(np.float32)


def dumped(path: Path, program: Program, saved_data: Any = "full") -> Any:
    with opdump.capture(DumpPlan(path=path, saved_data=saved_data), steps="manual"):
        return jax.tree.map(np.asarray, program())


def compared(path: Path, a: Program, b: Program, saved_data: Any = "full") -> Result:
    dumped(path / "a", a, saved_data)
    dumped(path / "b", b, saved_data)
    return opdump.compare(path / "a", path / "b")


def normalised(values: Any, epsilon: float) -> Any:
    mean = values.mean(-1, keepdims=True)
    return (values - mean) / jnp.sqrt(((values - mean) ** 2).mean(-1, keepdims=True) + epsilon)


def trained(*, epsilon: float = 1e-5, count: float = 12, bound: float = 1.0, rate: float = 0.1) -> Any:
    def loss(weights: Any) -> Any:
        return (jnp.tanh(normalised(jnp.asarray(X), epsilon) @ weights) ** 2).sum() / count

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(W))
    gradient = gradient * jnp.minimum(1.0, bound / jnp.sqrt((gradient**2).sum()))
    return value, jnp.asarray(W) - rate * gradient


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"epsilon": 1e-3}, "+ epsilon)"),
        ({"count": 11}, "/ count"),
        ({"bound": 0.05}, "bound /"),
        ({"rate": 0.2}, "rate *"),
    ],
    ids=["epsilon", "count", "bound", "rate"],
)
def test_another_number_in_a_program_that_is_not_compiled_is_named(
    changed: dict[str, Any], text: str, saved_data: str, tmp_path: Path
) -> None:
    result = compared(tmp_path, trained, lambda: trained(**changed), saved_data)
    assert result.verdict == "divergent"
    first = result.introduced[0]
    assert first.b is not None
    assert text in first.b.stack[0].code


def attended(*, root: float) -> Any:
    """The gradient of attention with a mask of -1e9. Softmax subtracts the maximum of each row from the mask, too."""

    def loss(weights: Any) -> Any:
        scores = jnp.asarray(X) @ weights @ jnp.asarray(X).T
        scores = scores if root == 1 else scores / root
        masked = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), scores, -1e9)
        return (jax.nn.softmax(masked) @ jnp.asarray(X) @ weights).sum() ** 2

    return jax.jit(jax.grad(loss))(jnp.asarray(W))


def test_a_missing_division_before_a_mask_is_named_before_its_gradient_and_the_results_of_the_function(
    tmp_path: Path,
) -> None:
    result = compared(tmp_path, lambda: attended(root=2.0), lambda: attended(root=1.0))
    first = result.introduced[0]
    assert first.a is not None
    assert "scores / root" in first.a.stack[0].code
    assert first.a.phase == "forward"
    accused = [side for each in result.introduced for side in (each.a, each.b) if side is not None]
    assert not {side.kernel for side in accused} & {"jax::jit", "Parameter"}


def with_unused_parameter(mode: str, *, second: str, sizes: Sequence[float] = (1.0, 1.0)) -> Any:
    """A step of training. If `second` is not "second", that parameter is not used, and its gradient is zeros."""

    def loss(parameters: Any) -> Any:
        hidden = jnp.asarray(X) * parameters["first"]
        for _ in range(4):
            hidden = jnp.tanh(hidden @ jnp.asarray(W)) + hidden
        return (hidden * parameters[second]).sum() ** 2

    gradient_of = jax.jit(jax.grad(loss)) if mode == "gradient compiled" else jax.grad(loss)

    def step(state: Any) -> Any:
        gradients = gradient_of(state["parameters"])
        return jax.tree.map(lambda old, gradient: old - 0.1 * gradient, state["parameters"], gradients)

    state = {"parameters": {"first": jnp.full(4, sizes[0]), "second": jnp.full(4, sizes[1])}}
    return (jax.jit(step) if mode == "compiled" else step)(state)


@pytest.mark.parametrize(
    "modes",
    [("compiled", "compiled"), ("compiled", "gradient compiled"), ("not compiled", "not compiled")],
    ids=" and ".join,
)
def test_a_parameter_in_place_of_another_with_the_same_values_is_named_before_the_gradients_that_differ(
    modes: tuple[str, str], tmp_path: Path
) -> None:
    result = compared(
        tmp_path,
        lambda: with_unused_parameter(modes[0], second="second"),
        lambda: with_unused_parameter(modes[1], second="first"),
    )
    first = result.introduced[0]
    assert first.kind == "input"
    assert "with the same values" in first.evidence
    assert first.b is not None
    assert first.b.phase == "forward"
    assert "parameters[second]" in first.b.stack[0].code


@pytest.mark.parametrize("mode", ["compiled", "gradient compiled", "not compiled"])
def test_a_parameter_in_place_of_another_is_named_before_the_state_that_stays(mode: str, tmp_path: Path) -> None:
    program = partial(with_unused_parameter, mode, sizes=(1.0, 0.7))
    result = compared(tmp_path, partial(program, second="second"), partial(program, second="first"))
    first = result.introduced[0]
    assert first.b is not None
    assert first.b.phase == "forward"
    assert "parameters[second]" in first.b.stack[0].code


@pytest.mark.parametrize("compiled", [False, True], ids=["gradient compiled", "compiled"])
def test_a_missing_bias_of_zeros_is_named_before_its_gradient(compiled: bool, tmp_path: Path) -> None:
    def loss(parameters: Any, *, has_bias: bool) -> Any:
        sums = jnp.asarray(X) @ parameters["weight"]
        return jnp.tanh(sums + parameters["bias"] if has_bias else sums).sum() ** 2

    def run(*, has_bias: bool) -> Any:
        gradient_of = jax.jit(jax.grad(partial(loss, has_bias=has_bias)))

        def step(parameters: Any) -> Any:
            return jax.tree.map(lambda old, gradient: old - 0.1 * gradient, parameters, gradient_of(parameters))

        return (jax.jit(step) if compiled else step)({"weight": jnp.asarray(W), "bias": jnp.zeros(4)})

    result = compared(tmp_path, partial(run, has_bias=True), partial(run, has_bias=False))
    first = result.introduced[0]
    assert first.a is not None
    assert first.a.phase == "forward"
    assert 'parameters["bias"]' in first.a.stack[0].code


def recurrent(*, compiled: bool = True, root: float = 2.0, written_out: bool = False, rate: float = 0.1) -> Any:
    """Two steps of training with a loop, its stacked states, and a gradient that runs backwards through it.

    If the step is not compiled, JAX compiles the loop, and returns what its gradient needs as stacks.
    """

    def loss(weights: Any) -> Any:
        def advance(state: Any, row: Any) -> Any:
            gate = row @ weights + state
            gate = 0.5 + 0.5 * jnp.tanh(0.5 * gate) if written_out else jax.nn.sigmoid(gate)
            state = gate * state + (1 - gate) * row
            return state, state

        _, states = jax.lax.scan(advance, jnp.zeros(4), jnp.asarray(X))
        return ((states @ weights / root) ** 2).mean()

    def step(weights: Any) -> Any:
        return weights - rate * jax.grad(loss)(weights)

    if compiled:
        step = jax.jit(step)
    weights = jnp.asarray(W)
    for _ in range(2):
        weights = step(weights)
    return weights


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "uncompiled"])
def test_a_loop_that_computes_the_same_with_other_operators_is_benign(compiled: bool, tmp_path: Path) -> None:
    program = partial(recurrent, compiled=compiled)
    result = compared(tmp_path, program, partial(program, written_out=True))
    assert result.verdict == "benign", result.headline


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "uncompiled"])
@pytest.mark.parametrize(
    ("changed", "text"), [({"root": 3.0}, "/ root"), ({"rate": 0.2}, "- rate *")], ids=["root", "rate"]
)
def test_a_fault_behind_or_after_a_loop_is_named_and_all_that_follows_is_inherited(
    changed: dict[str, Any], text: str, compiled: bool, tmp_path: Path
) -> None:
    program = partial(recurrent, compiled=compiled)
    result = compared(tmp_path, program, partial(program, **changed))
    first = result.introduced[0]
    assert first.b is not None
    assert text in first.b.stack[0].code
    assert {each.kind for each in result.introduced} == {"argument"}, "no value without a maker differs"


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
def test_the_same_program_twice_is_identical(saved_data: str, tmp_path: Path) -> None:
    result = compared(tmp_path, trained, trained, saved_data)
    assert result.verdict == "identical"
    assert result.unmatched == 0


def squares_of_positives(values: Any) -> Any:
    return jnp.where(values > 0, values * values, 0.0).sum()


def log_sums(values: Any) -> Any:
    return jax.scipy.special.logsumexp(values @ values.T, axis=-1).sum()


def softmaxes(values: Any) -> Any:
    return (jax.nn.softmax(values @ W, -1) * jax.nn.gelu(values)).sum()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("function", [squares_of_positives, log_sums, softmaxes], ids=lambda each: each.__name__)
def test_a_compiled_function_is_not_divergent_from_the_same_function_run_eagerly(
    function: Callable[[Any], Any], tmp_path: Path, *, turned: bool
) -> None:
    gradient = jax.grad(function)
    programs: list[Program] = [lambda: gradient(X), lambda: jax.jit(gradient)(X)]
    result = compared(tmp_path, *(programs[::-1] if turned else programs))
    assert result.verdict in ("benign", "incomparable"), result.headline
    if result.verdict == "incomparable":
        assert "compiles" in "".join(result.notes)


def scanned(values: Any, rate: float = 0.9) -> Any:
    return jax.lax.scan(lambda carry, row: (carry * rate + row, jnp.tanh(carry)), values[0], values)


def repeated(values: Any, rate: float = 1.1) -> Any:
    return jax.lax.while_loop(lambda at: at[0] < 5, lambda at: (at[0] + 1, jnp.tanh(at[1] * rate)), (0, values))


def log_sums_of_rows(values: Any, rate: float = 1.0) -> Any:
    return jax.scipy.special.logsumexp(values * rate, 1)


def spread_of_rows(values: Any, rate: float = 1.0) -> Any:
    return jnp.var(values, 1) * rate, jnp.std(values, 0)


def in_bfloat16(values: Any, rate: float = 1.0) -> Any:
    return (values.astype(jnp.bfloat16) @ jnp.asarray(W, jnp.bfloat16)).astype(jnp.float32) * rate


OF_ITERATIONS_AND_TYPES = [scanned, repeated, log_sums_of_rows, spread_of_rows, in_bfloat16]


@pytest.mark.parametrize("function", OF_ITERATIONS_AND_TYPES, ids=lambda each: each.__name__)
def test_statistics_of_a_compiled_function_are_compared_iteration_by_iteration_and_within_its_types(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    dumped(tmp_path / "a", lambda: function(jnp.asarray(X)), "statistic")
    for name, rates in (("same", {}), ("other", {"rate": 1.5})):
        dumped(tmp_path / name, partial(jax.jit(partial(function, **rates)), X), "statistic")
    same, other = (opdump.compare(tmp_path / "a", tmp_path / name) for name in ("same", "other"))
    assert same.verdict in ("benign", "incomparable"), same.headline
    assert other.verdict in ("divergent", "incomparable"), other.headline
    assert "nothing of A was found" not in same.headline + other.headline


@pytest.mark.parametrize("turned", [False, True])
def test_a_compiled_function_that_computes_something_else_is_never_benign(tmp_path: Path, *, turned: bool) -> None:
    programs: list[Program] = [
        lambda: normalised(jnp.asarray(X), 1e-5) @ W,
        lambda: jax.jit(lambda values: normalised(values, 1e-2) @ W)(X),
    ]
    result = compared(tmp_path, *(programs[::-1] if turned else programs))
    assert result.verdict in ("divergent", "incomparable")


def looped(factor: float) -> Callable[[Any], Any]:
    return lambda x: jax.lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1] * factor), (0, x)
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (looped(1.2), looped(1.1)),
        (lambda x: jnp.argmax(jnp.tanh(x) * x, 1), lambda x: jnp.argmin(jnp.tanh(x) * x, 1)),
    ],
    ids=["one of two results", "argmax"],
)
def test_compiled_code_with_another_result_is_never_benign(
    one: Callable[..., Any], other: Callable[..., Any], tmp_path: Path
) -> None:
    x = jnp.asarray(X)
    same = compared(tmp_path / "same", partial(one, x), partial(jax.jit(one), x))
    assert same.verdict in ("benign", "identical"), same.headline
    result = compared(tmp_path / "other", partial(one, x), partial(jax.jit(other), x))
    assert result.verdict == "divergent", result.headline


def test_gradients_of_a_map_that_is_not_compiled_are_compared(tmp_path: Path) -> None:
    def gradient() -> Any:
        return jax.grad(lambda rows: jax.lax.map(lambda row: jnp.tanh(row) * 2, rows).sum())(jnp.asarray(X))

    assert compared(tmp_path, gradient, gradient).verdict == "identical"


def test_a_fault_in_a_loop_that_only_one_run_compiles_is_a_difference(tmp_path: Path) -> None:
    def program(*, squared: bool) -> Callable[..., Any]:
        def loss(rows: Any) -> Any:
            def advance(state: Any, row: Any) -> Any:
                return state + (row * state if squared else row), state

            return jax.lax.scan(advance, rows[0], rows)[1].sum()

        gradient: Callable[..., Any] = jax.value_and_grad(loss)
        return gradient

    rows = jnp.asarray(X)
    plain = partial(program(squared=False), rows)
    result = compared(tmp_path, plain, partial(jax.jit(program(squared=True)), rows))
    assert result.verdict == "divergent", result.headline


def test_steps_of_a_training_correspond_whether_it_is_compiled_or_not(tmp_path: Path) -> None:
    """Both runs have updates of one name for parameters of different shapes: these names mean nothing."""

    def loss(weights: Any) -> Any:
        return (normalised(jnp.asarray(X), 1e-5) @ weights["w"] + weights["b"] * jnp.var(weights["w"])).sum() ** 2

    def train_step(weights: Any) -> Any:
        return jax.tree.map(lambda value, each: value - 1e-3 * each, weights, jax.grad(loss)(weights))

    for name, step in (("a", jax.jit(train_step)), ("b", train_step)):
        with opdump.capture(DumpPlan(path=tmp_path / name, saved_data="full")):
            weights = {"b": jnp.ones(4), "w": jnp.asarray(W)}
            for _ in range(2):
                weights = step(weights)
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict in ("identical", "benign"), result.headline


def test_a_compiled_run_of_other_steps_is_incomparable_and_says_why(tmp_path: Path) -> None:
    def steps(function: Callable[[Any], Any]) -> None:
        weights = jnp.asarray(W)
        for _ in range(3):
            weights = function(weights)
        np.asarray(weights)

    def update(weights: Any) -> Any:
        return weights - 0.01 * X.T @ (X @ weights)  # without a gradient of JAX, nothing shows where a step ends

    for name, function in (("a", update), ("b", jax.jit(update))):
        with opdump.capture(DumpPlan(path=tmp_path / name, saved_data="full")):
            steps(function)
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    assert result.headline.startswith("INCOMPARABLE: A has ")
    assert "dump.step()" in "".join(result.notes)


# Random programs:

Operation = tuple[str, float]
OPERATIONS = (
    "add",
    "mul",
    "tanh",
    "matmul",
    "softmax",
    "where",
    "centred",
    "clip",
    "norm",
    "turned",
    "cumsum",
    "maximum",
)


def run(data: Any, operations: Sequence[Operation]) -> Any:
    values = jnp.asarray(data)
    first = values
    for name, number in operations:
        if name == "add":
            values = values + number
        elif name == "mul":
            values = values * (1 + number / 4)
        elif name == "tanh":
            values = jnp.tanh(values) * number
        elif name == "matmul":
            values = values @ W / (1 + number)
        elif name == "softmax":
            values = jax.nn.softmax(values * number, -1)
        elif name == "where":
            values = jnp.where(values > 0.1, values, values * number)
        elif name == "centred":
            values = values - values.mean(0, keepdims=True) * number
        elif name == "clip":
            values = jnp.clip(values, -number, number)
        elif name == "norm":
            values = normalised(values, number / 10)
        elif name == "turned":
            values = values.T + number * first
        elif name == "cumsum":
            values = jnp.cumsum(values, axis=int(number * 10) % 2)
        else:
            values = jnp.maximum(values, number - 1)
    return values


def edited(generator: random.Random, data: Any, operations: Sequence[Operation]) -> tuple[Any, list[Operation]]:
    """The program with a different number, operator or data value, or with one operator more or less."""
    changed, place = list(operations), generator.randrange(len(operations))
    kind = generator.choice(["number", "operator", "missing", "extra", "data"])
    if kind == "number":
        changed[place] = changed[place][0], changed[place][1] * generator.choice([1.01, 1.5, 0.5])
    elif kind == "operator":
        changed[place] = generator.choice(OPERATIONS), changed[place][1]
    elif kind == "missing":
        del changed[place]
    elif kind == "extra":
        changed.insert(place, (generator.choice(OPERATIONS), 0.3))
    else:
        data = data.copy()
        data[generator.randrange(4), generator.randrange(4)] += generator.choice([1.0, 0.01])
    return data, changed


def far_apart(one: Any, other: Any, saved_data: str) -> bool:
    """Whether values, or else statistics, differ by more than 100 roundings."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if one.shape != other.shape:
        return True
    size = np.sqrt(np.mean(one**2))
    apart = np.sqrt(np.mean((one - other) ** 2))
    if saved_data == "statistic":
        first, second = (
            np.array([each.max(), each.min(), each.mean(), np.sqrt(np.mean(each**2))]) for each in (one, other)
        )
        apart = np.abs(first - second).max()
    return bool(apart > 100 * 2.0**-23 * size)


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
@pytest.mark.parametrize("mode", ["plain", "compiled", "compiled against plain"])
def test_random_programs_with_random_edits_are_never_benign_where_their_results_differ(
    mode: str, saved_data: str, tmp_path: Path
) -> None:
    generator, count = random.Random(f"{mode} {saved_data}"), 6
    wrong = []
    for number in range(count):
        data = np.random.default_rng(number).normal(size=(4, 4)).astype(np.float32)
        operations = [(generator.choice(OPERATIONS), generator.uniform(0.2, 0.9)) for _ in range(4)]
        other_data, others = edited(generator, data, operations)
        programs: list[Program] = []
        for values, each, is_compiled in (
            (data, operations, mode == "compiled"),
            (other_data, others, mode != "plain"),
        ):
            function: Any = jax.jit(run, static_argnums=1) if is_compiled else run
            programs.append(partial(function, values, tuple(each)))
        one, other = programs
        result = compared(tmp_path / str(number), one, other, saved_data)
        differs = far_apart(one(), other(), saved_data)
        if differs and result.verdict in ("benign", "identical"):
            wrong.append((number, operations, others, result.headline))
        if (other_data is data and others == operations) and result.verdict == "divergent":
            wrong.append((number, operations, operations, result.headline))
    assert wrong == []


def test_the_origin_of_a_nan_is_in_a_compiled_function_and_not_its_call(tmp_path: Path) -> None:
    def masked_mean(values: Any) -> Any:
        return jnp.where(values > 0, jnp.nan, values).mean()

    dumped(tmp_path, lambda: jax.jit(masked_mean)(X))
    found = CliRunner().invoke(main, ["check", str(tmp_path), "--json"]).stdout
    calls = [each for each in json.loads(found)["findings"] if each["op_type"] == "jit"]
    assert [(each["origin"], each["inherited"]) for each in calls] == [(False, True)]


@pytest.mark.parametrize("compiled", [(False, False), (True, True), (True, False), (False, True)], ids=str)
def test_a_loss_is_compared_although_clipped_gradients_do_not_depend_on_its_scale(
    compiled: tuple[bool, bool], tmp_path: Path
) -> None:
    programs = [
        jax.jit(partial(trained, count=count, bound=0.05)) if is_compiled else partial(trained, count=count, bound=0.05)
        for count, is_compiled in zip((12, 11), compiled, strict=True)
    ]
    result = compared(tmp_path, *programs)
    assert result.verdict == "divergent", result.headline
    first = result.introduced[0]
    lines = [each.stack[0].code for each in (first.a, first.b) if each is not None and each.stack]
    assert any(line.endswith("/ count") for line in lines), lines


def dump_with_a_running_mean(path: Path, *, is_compiled: bool, share: float = 0.1) -> None:
    """Dump two steps of a training. Only the next step reads the running mean, and nothing that it computes depends on the mean."""

    def loss(weights: Any, running: Any, values: Any) -> Any:
        mean = values.mean(0)
        return (((values - mean) @ weights) ** 2).mean(), 0.9 * running + share * mean

    def step(weights: Any, running: Any, values: Any) -> Any:
        (value, running), gradient = jax.value_and_grad(loss, has_aux=True)(weights, running, values)
        return weights - 0.1 * gradient, running, value

    run = jax.jit(step) if is_compiled else step
    weights, running = jnp.asarray(W), jnp.zeros(4)
    with opdump.capture(DumpPlan(path=path, saved_data="full"), steps="manual") as dump:
        for number in range(2):
            weights, running, _ = run(weights, running, jnp.asarray(X + number))
            dump.step()


@pytest.mark.parametrize("is_compiled", [(True, True), (False, False), (True, False), (False, True)], ids=str)
def test_a_running_mean_that_only_the_next_step_reads_is_a_result(
    is_compiled: tuple[bool, bool], tmp_path: Path
) -> None:
    for share in (0.1, 0.2):
        paths = tmp_path / f"a{share}", tmp_path / f"b{share}"
        dump_with_a_running_mean(paths[0], is_compiled=is_compiled[0])
        dump_with_a_running_mean(paths[1], is_compiled=is_compiled[1], share=share)
        result = opdump.compare(*paths)
        if share == 0.1:
            assert result.verdict in ("identical", "benign")
        else:
            assert result.verdict == "divergent"
            first = result.introduced[0].b
            assert first is not None
            assert "share * mean" in first.stack[0].code


def step_in_order(parameters: Any, moments: Any) -> Any:
    """A training step of two layers, whose matrices have one shape; the parameters are updated in the order of their names."""

    def loss(weights: Any) -> Any:
        hidden = jnp.tanh(normalised(jnp.asarray(X) @ weights["inner"], 1e-5))
        return ((hidden @ weights["outer"] + weights["shift"]) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    moments = jax.tree.map(lambda moment, gradient: 0.9 * moment + gradient, moments, gradients)
    return value, jax.tree.map(lambda weight, moment: weight - 0.1 * moment, parameters, moments), moments


def step_in_another_order(parameters: Any, moments: Any, left: str = "", turned: str = "", rate: float = 0.1) -> Any:
    """The same with other code: the first parameter by name is another one. `left` is not updated, `turned` is returned transposed."""

    def cost(given: Any) -> Any:
        rows = jnp.einsum("bi,ij->bj", jnp.asarray(X), given["z_inner"])
        centred = rows - rows.sum(-1, keepdims=True) / 4
        rows = jnp.tanh(centred * jax.lax.rsqrt((centred * centred).sum(-1, keepdims=True) / 4 + 1e-5))
        outputs = given["m_shift"] + jnp.einsum("bi,ij->bj", rows, given["a_outer"])
        return jnp.square(outputs).sum() / outputs.size

    (value, slopes), parameters = jax.value_and_grad(cost)(parameters), dict(parameters)
    for name in sorted(parameters):
        moments = {**moments, name: slopes[name] + moments[name] * 0.9}
        if name != left:
            parameters[name] = (-rate) * moments[name] + parameters[name]
        if name == turned:
            parameters[name] = parameters[name].T
    return value, parameters, moments


def trained_in(step: Any, names: Sequence[str], is_compiled: bool) -> Any:
    generator = np.random.default_rng(1)
    values = [generator.normal(size=(4, 4)), generator.normal(size=(4, 4)), generator.normal(size=(5, 4))]
    parameters = {name: jnp.asarray(each, jnp.float32) for name, each in zip(names, values, strict=True)}
    moments = jax.tree.map(jnp.zeros_like, parameters)
    return (jax.jit(step) if is_compiled else step)(parameters, moments)[1:]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "benign"),
        ({"left": "m_shift"}, "divergent"),
        ({"left": "a_outer"}, "divergent"),
        ({"turned": "a_outer"}, "divergent"),
        ({"rate": 0.1001}, "divergent"),
    ],
    ids=str,
)
def test_other_code_is_benign_only_if_every_result_is_the_same(
    changed: dict[str, Any], verdict: str, is_compiled: bool, tmp_path: Path
) -> None:
    result = compared(
        tmp_path,
        lambda: trained_in(step_in_order, ["inner", "outer", "shift"], is_compiled),
        lambda: trained_in(partial(step_in_another_order, **changed), ["z_inner", "a_outer", "m_shift"], is_compiled),
    )
    assert result.verdict == verdict, result.headline
