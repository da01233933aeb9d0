"""Names of operators from the name stacks of JAX; runs without JAX."""

from __future__ import annotations

import pytest

from opdump.adapters.jax.names import Names, arguments_of, phase_of, scope_of, value_name


@pytest.mark.parametrize(
    ("stack", "scope"),
    [
        ("", ""),
        ("jvp()", ""),
        ("jvp(A)/hid", "A/hid"),
        ("transpose(jvp(A))/Dense_0", "A/Dense_0"),
        ("vmap(eqx.nn.MLP)/eqx.nn.Linear", "eqx.nn.MLP/eqx.nn.Linear"),
        ("jvp(A)/jit(relu)", "A/relu"),
        ("jvp(A/B)/C", "A/B/C"),
        ("transpose(jvp(A))/rematted_computation/B", "A/B"),
    ],
)
def test_scopes_stand_without_transformations(stack: str, scope: str) -> None:
    assert scope_of(stack) == scope


@pytest.mark.parametrize(
    ("stack", "follows", "phase"),
    [
        ("", False, "forward"),
        ("jvp(A)", False, "forward"),
        ("transpose(jvp(A))", False, "backward"),
        ("transpose(jvp(A))/rematted_computation", False, "recomputation"),
        ("", True, "optimizer"),
        ("jvp(A)", True, "forward"),
    ],
)
def test_phases(stack: str, follows: bool, phase: str) -> None:
    assert phase_of(stack, follows_backward=follows) == phase


def test_a_name_is_given_once_and_is_the_same_when_it_is_asked_for_again() -> None:
    names = Names()
    first = names.of((0,), "A/Dense_0", "dot_general", "forward")
    second = names.of((1,), "A/Dense_0", "dot_general", "forward")
    backward = names.of((2,), "A/Dense_0", "dot_general", "backward")
    assert first == "Default/A/Dense_0/dot_general-op0"
    assert second == "Default/A/Dense_0/dot_general-op1"
    assert backward == "Gradients/Default/A/Dense_0/dot_general-op0"
    assert names.of((1,), "A/Dense_0", "dot_general", "forward") == second


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("params['params']['Dense_0']['kernel']", "params.params.Dense_0.kernel"),
        ("state.params[0].weight", "state.params.0.weight"),
        ("result[1]", "result.1"),
        ("x", "x"),
    ],
)
def test_values_are_named_by_their_path(path: str, name: str) -> None:
    assert value_name(path) == name


def test_parameters_become_json_values() -> None:
    found = arguments_of({"axes": (0, 1), "dtype": complex, "name": "f", "none": None, "deep": (((((1,),),),),)})
    assert found["axes"] == [0, 1]
    assert found["name"] == "f"
    assert "none" not in found
    assert "dtype" not in found  # a class is a callable
    assert isinstance(found["deep"][0][0][0], str)
