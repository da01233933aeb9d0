"""Which calls are steps, and which calls use the fast path of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit

from opdump.adapters.jax.capture import Capture
from opdump.plan import KernelPattern, StepSet
from tests.jax.capture.recording import recorded

W = np.ones((3, 2), np.float32)
X = np.ones((4, 3), np.float32)


def loss(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"]).sum()


def update(params: Any, x: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


def test_gradients_of_parameters_are_not_updated_parameters() -> None:
    gradient = jax.jit(jax.value_and_grad(loss))
    clipped = jax.jit(lambda params, x: jax.tree.map(lambda each: jnp.clip(each, -1, 1), jax.grad(loss)(params, x)))
    array = jax.jit(jax.grad(lambda w: jnp.tanh(X @ w).sum()))
    with recorded() as recording:
        params = {"w": W}
        for _ in range(2):
            gradients = gradient(params, X)[1]
            clipped(params, X)
            array(W)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    assert [op.op_name for op in recording.ops(op_type="Parameter")] == []
    assert {op.phase for op in recording.ops(op_type="sub") if not op.graph_id} == {"optimizer"}
    assert {op.step for op in recording.ops(op_type="jit")} == {0, 1}


def test_a_step_is_a_call_of_what_updates_its_arguments() -> None:
    step, evaluate = jax.jit(update), jax.jit(loss)
    params = {"w": W}
    with recorded() as recording:
        for _ in range(3):
            params = step(params, X)
            evaluate(params, X)
            evaluate(params, X)
    calls = [(op.op_name, op.step) for op in recording.ops(op_type="jit")]
    assert calls == [
        (name, number) for number in range(3) for name in ("Default/update-jit", "Default/loss-jit", "Default/loss-jit")
    ]


def test_two_functions_that_update_in_turn_are_one_step() -> None:
    def other_update(params: Any, x: Any) -> Any:
        return update(params, 2 * x)

    first, second = jax.jit(update), jax.jit(other_update)
    one, other = {"w": W}, {"w": W}
    with recorded() as recording:
        for _ in range(3):
            one, other = first(one, X), second(other, X)
    assert [op.step for op in recording.ops(op_type="jit")] == [0, 0, 1, 1, 2, 2]


def test_inference_is_a_step_a_call() -> None:
    predict = jax.jit(loss)
    with recorded(steps="1") as recording:
        for _ in range(3):
            predict({"w": W}, X)
    assert [op.step for op in recording.ops(op_type="jit")] == [1]


def test_another_batch_size_is_the_same_function() -> None:
    step = jax.jit(update)
    params = {"w": W}
    with recorded() as recording:
        for size in (4, 4, 2):
            params = step(params, X[:size])
    assert [(op.step, op.graph_id) for op in recording.ops(op_type="jit")] == [(0, 1), (1, 1), (2, 2)]


def test_a_transformed_function_is_no_second_step() -> None:
    inner = jax.jit(loss)
    with recorded() as recording:
        for _ in range(2):
            jax.value_and_grad(inner)({"w": W}, X)
    assert sorted({op.step for op in recording.ops(op_type="jit")}) == [0, 1]


@pytest.mark.parametrize(("wanted", "expected"), [("all", [0, 1, 2]), ("1", [1])])
def test_a_program_that_compiles_nothing_begins_a_step_after_each_update(wanted: str, expected: list[int]) -> None:
    def square(w: Any) -> Any:
        return jnp.sum(jnp.tanh(w) ** 2)

    weights = jnp.asarray(W)
    with recorded(steps=wanted) as recording:
        for _ in range(3):
            value, gradient = jax.value_and_grad(square)(weights)
            weights = weights - 0.1 * gradient + 0 * value
    assert [op.step for op in recording.ops(op_type="tanh")] == expected
    assert {op.step for op in recording.ops(op_type="sub")} == set(expected)


def test_steps_by_hand() -> None:
    step = jax.jit(update)
    with recorded(manual=True) as recording:
        step({"w": W}, X)
        step({"w": W}, X)
        recording.clock.manual_step()
        step({"w": W}, X)
    assert [op.step for op in recording.ops(op_type="jit")] == [0, 0, 1]


def test_only_what_is_asked_for_is_given_back_by_the_twin() -> None:
    step = jax.jit(update)
    with recorded(selection="kernels", kernels=(KernelPattern.parse("tanh"),)) as recording:
        step({"w": W}, X)
    assert {op.op_type for op in recording.ops(graph_id=1)} >= {"tanh"}
    assert {"dot_general", "jit"}.isdisjoint({op.op_type for op in recording.ops(graph_id=1)})
    assert recording.recorder.matched_kernels == {"tanh"}


def test_small_functions_take_the_fast_path_outside_of_wanted_steps() -> None:
    step = jax.jit(update)
    params, seen = {"w": W}, []
    values = jnp.ones(3)
    with recorded(steps="5") as recording:
        for number in range(8):
            params = step(params, X)
            values = values + 1
            seen.append((number, recording.clock.step))
    # After the last selected step, nothing is counted.
    assert [step for _, step in seen][:6] == list(range(6))
    eager = [op for op in recording.ops(graph_id=0) if op.op_type == "add"]
    assert [op.step for op in eager] == [5]


def counted(params: Any, x: Any) -> Any:
    return {"w": params["w"] - 0 * jax.grad(loss)(params, x)["w"], "calls": params["calls"] + 1}


def one_function(times: int) -> None:
    step, params = jax.jit(counted, donate_argnums=0), {"w": jnp.array(W), "calls": jnp.zeros(())}
    for _ in range(times):
        params = step(params, X)


def functions_in_turn(times: int) -> None:
    first, second = jax.jit(counted), jax.jit(lambda params, x: counted(params, 2 * x))
    one, other = ({"w": jnp.array(W), "calls": jnp.zeros(())} for _ in range(2))
    for _ in range(times):
        one, other = first(one, X), second(other, X)


def evaluation_between(times: int) -> None:
    step, evaluate, params = jax.jit(counted), jax.jit(loss), {"w": jnp.array(W), "calls": jnp.zeros(())}
    for number in range(times):
        params = step(params, X)
        for _ in range(number % 3):
            evaluate({"w": params["w"]}, X)


def inference(times: int) -> None:
    predict = jax.jit(lambda w, calls: (jnp.tanh(X @ w).sum(), calls * 2)[1])
    for number in range(times):
        predict(W, np.float32(number))


@pytest.mark.parametrize("wanted", ["0", "3", "2|5", "4-5|9", "1|3|5|7", "10"])
@pytest.mark.parametrize("program", [one_function, functions_in_turn, evaluation_between, inference])
def test_steps_are_counted_on_the_fast_path_and_none_is_missed(program: Any, wanted: str) -> None:
    program(3)  # compiles the functions
    with recorded(steps=wanted) as recording:
        program(11)
    calls = [op for op in recording.ops(op_type="jit") if "loss" not in op.op_name]
    assert {op.step for op in calls} == {step for step in range(11) if step in StepSet.parse(wanted)}
    for op in calls:
        (given,) = [
            float(np.asarray(each.payload.to_host()))
            for each in recording.writer.tensors
            if each.op is op and each.io == "input" and each.shape == () and each.payload is not None
        ]
        assert given == op.step


def test_few_calls_are_seen_outside_of_wanted_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Capture.called

    def called(capture: Capture, *given: Any) -> Any:
        answer = real(capture, *given)
        seen.append(capture.step)
        return answer

    monkeypatch.setattr(Capture, "called", called)
    step, params = jax.jit(update), {"w": W}
    with recorded(steps="10|20") as recording:
        for _ in range(30):
            params = step(params, X)
        assert recording.clock.step == 22  # nothing is counted after the last selected step
    assert seen == [0, 1, 10, 11, 12, 20, 21, 22]


def test_calls_after_the_last_wanted_step_take_the_fast_path_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = Capture.called

    def called(capture: Capture, *given: Any) -> Any:
        seen.append(given[3])
        return real(capture, *given)

    monkeypatch.setattr(Capture, "called", called)
    step = jax.jit(update)
    params, values, counts = {"w": W}, jnp.ones(3), []
    with recorded(steps="1"):
        for _ in range(9):
            params, values = step(params, X), jnp.tanh(values)
            counts.append(len(seen))
            seen.clear()
    assert counts[1] == 2
    assert counts[-4:] == [0, 0, 0, 0]


def test_calls_behind_a_capture_take_the_fast_path_again() -> None:
    step = jax.jit(update)
    asked: list[int] = []
    real = pjit._pjit_call_impl_python

    def python_path(*given: Any, **keywords: Any) -> Any:
        asked.append(1)
        return real(*given, **keywords)

    params = {"w": W}
    with recorded(steps="100"):
        for _ in range(3):
            params = step(params, X)
    pjit._pjit_call_impl_python = python_path
    try:
        for _ in range(4):
            params = step(params, X)
    finally:
        pjit._pjit_call_impl_python = real
    assert len(asked) <= 2
