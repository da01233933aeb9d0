"""The table of operator types contains every primitive that the trainings use, and every name that it assigns to JAX exists in JAX."""

from __future__ import annotations

import gc
import importlib
from typing import Any, Final

import jax
import pytest

from opdump.checks.operator_classes import class_of
from opdump.op_types import ROWS, rows_of
from tests.jax.capture.test_trainings import equations
from tests.jax.capture.trainings import TRAININGS

IN_NO_ROW: Final = {
    "bitcast_convert_type": "the bits, as another type: the table has no such concept",
    "random_fold_in": "a key of random numbers, which no other framework hands from operator to operator",
    "random_split": "the same",
    "reshard": "the same elements on other devices",
    "scan": "a loop: its trips are operators of their own",
    "shift_right_logical": "turns random bits into fractions: no other framework shows that",
}
"""Primitives that the trainings use but the table lacks, with the reason."""
YOUNG: Final = {"stack", "stage", "tile", "unstack"}
"""Missing in JAX 0.6; all exist in 0.10."""
DEFINED_IN: Final = ("cudnn.fused_attention_stablehlo", "cudnn.scaled_matmul_stablehlo")
"""Modules of JAX that define primitives and are imported at their first call."""


def primitives() -> set[str]:
    for module in DEFINED_IN:
        importlib.import_module(f"jax._src.{module}")
    return {each.name for each in gc.get_objects() if isinstance(each, jax.extend.core.Primitive)}


def test_every_name_of_jax_is_a_primitive() -> None:
    known = primitives()
    assert len(known) > 200
    named = {name for row in ROWS for name in (*row.jax, *row.jax_in_parts)}
    assert len(named) > 100
    young = YOUNG if jax.__version_info__ < (0, 10) else set()
    assert sorted(named - known) == sorted(young)
    assert YOUNG.issubset(named)


def used() -> dict[str, str]:
    """The primitives of the trainings, each with a training that uses it."""
    found: dict[str, str] = {}
    for name, training in TRAININGS.items():
        step, state, batch = training()
        jaxpr: Any = jax.jit(step).trace(state, *batch).jaxpr
        found |= dict.fromkeys(equations(jaxpr.jaxpr), name)
    return found


def test_the_table_has_every_primitive_of_the_trainings() -> None:
    found = used()
    assert len(found) > 40
    without = {kind: name for kind, name in found.items() if not rows_of(f"lax::{kind}")}
    assert set(without) - set(IN_NO_ROW) == set(), without
    assert {kind for kind in IN_NO_ROW if rows_of(f"lax::{kind}")} == set()


@pytest.mark.parametrize(
    ("primitive", "kind"),
    [
        ("convert_element_type", "casts"),
        ("dot_general", "cube"),
        ("conv_general_dilated", "cube"),
        ("broadcast_in_dim", "moves"),
        ("dynamic_update_slice", "moves"),
        ("reduce_window_max", "moves"),
        ("select_n", "moves"),
        ("reduce_window_sum", "computes"),
        ("select_and_scatter_add", "computes"),
        ("scatter-add", "computes"),
        ("integer_pow", "computes"),
    ],
)
def test_primitives_have_their_class(primitive: str, kind: str) -> None:
    assert primitive in primitives()
    assert class_of(primitive) == kind
