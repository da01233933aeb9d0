"""Values while a jaxpr is walked through: tracers, with where they are to be found when a twin has run."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opdump.adapters.jax.schedule import Opaque, Outer, Ref, Row, Tap

LITERAL: Final = Opaque("literal")


@dataclass(slots=True)
class Made:
    """A value in an environment. `ref` is None until somebody wants it.

    `around` is the same value in the level around this one, where it came from there; a trip of a loop reads a row of it if `is_row`.
    """

    value: Any
    source: str
    taps: Taps
    ref: Ref | None = None
    after_backward: bool = False
    around: Made | None = None
    is_row: bool = False

    def wanted(self) -> Ref:
        """Where the value is to be found, seen from its level."""
        if self.ref is None:
            if self.around is not None:
                ref = self.around.wanted()
                self.ref = ref if isinstance(ref, Opaque) else Row(ref) if self.is_row else Outer(ref)
            elif (kind := opaque_kind(jax.typeof(self.value))) is not None:
                self.ref = Opaque(kind)
            else:
                self.ref = self.taps.add(self.value, self)
        return self.ref


@dataclass(slots=True)
class Taps:
    """The values of a level that are to be given back, and whose they are."""

    values: list[Any] = field(default_factory=list)
    owners: list[Made | None] = field(default_factory=list)

    def add(self, value: Any, owner: Made | None = None) -> Tap:
        self.values.append(_storable(value))
        self.owners.append(owner)
        return Tap(len(self.values) - 1)

    def take_back(self, count: int) -> None:
        """Forgets all but the first ones."""
        for owner in self.owners[count:]:
            if owner is not None:
                owner.ref = None
        del self.values[count:], self.owners[count:]


def outer(made: Made, inner: Taps) -> Made:
    """A value of the level around a body, as the body reads it."""
    if made.ref == LITERAL:
        return Made(made.value, "", inner, LITERAL)
    return Made(made.value, made.source, inner, None, made.after_backward, around=made)


def carry_facts(entered: Sequence[Made], given: Sequence[Made]) -> None:
    """What a loop carries has the source that it had before the first trip."""
    for inside, outside in zip(entered, given, strict=True):
        inside.source, inside.after_backward = outside.source, outside.after_backward


def facts_of(value: Any) -> tuple[str, tuple[int, ...]]:
    """Element type and shape."""
    aval = jax.typeof(value)
    name = str(getattr(getattr(aval, "dtype", None), "name", "")) or str(aval)
    return name, tuple(getattr(aval, "shape", ()))


def _is_key(aval: Any) -> bool:
    return bool(jax.dtypes.issubdtype(getattr(aval, "dtype", None), jax.dtypes.prng_key))


def opaque_kind(aval: Any) -> str | None:
    """What a value of this type is where no array stands for it; None where one does."""
    if (
        is_reference(aval)
        or not hasattr(aval, "dtype")
        or not hasattr(aval, "shape")
        or aval.dtype == jax.dtypes.float0
    ):
        return str(aval)
    return None


def is_reference(aval: Any) -> bool:
    """Whether it is memory that a function writes into (`jax.Ref`), and no array."""
    return "Ref" in type(aval).__name__


def new_reference(content: Any) -> Any:
    """Memory that a function may write into, with this content."""
    if hasattr(jax, "new_ref"):  # from JAX 0.7 on
        return jax.new_ref(content)
    return importlib.import_module("jax.experimental").mutable_array(content)


def _storable(value: Any) -> Any:
    """The value as an array of numbers: keys of random numbers as the numbers in them."""
    return jax.random.key_data(value) if _is_key(jax.typeof(value)) else value


def chosen(goes_on: Any, after: Any, before: Any) -> Any:
    """What a trip leaves: of a loop over a batch, `before` where the loop of that element has ended."""
    if not goes_on.ndim:
        return after
    return jnp.where(goes_on.reshape(goes_on.shape + (1,) * (after.ndim - goes_on.ndim)), after, before)


def zeros_like(shape: tuple[int, ...], like: Any) -> Any:
    """Zeros in the type of `like`, on the axes of a mesh on which that differs."""
    zeros = jnp.zeros(shape, like.dtype)
    return varying(zeros, tuple(_varies_on(like)))


def varying(value: Any, axes: tuple[str, ...]) -> Any:
    """The value as one that may differ on every device of these axes."""
    missing = tuple(axis for axis in axes if axis not in _varies_on(jax.typeof(value)))
    if not missing:
        return value
    return lax.pcast(value, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(value, missing)


def _varies_on(aval: Any) -> frozenset[str]:
    """The axes of a mesh on which a value differs; JAX 0.9 and later name them elsewhere."""
    kind = getattr(aval, "mat", None) or getattr(aval, "manual_axis_type", None)
    found = getattr(kind, "varying", None)
    return frozenset(found if found is not None else getattr(aval, "vma", None) or ())


def number_of(value: Any) -> Any:
    """A literal as a JSON value; NaN and infinities as other arguments have them: `{"float": "-inf"}`."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "bif":
        return str(value)
    number = array.item()
    return number if array.dtype.kind != "f" or math.isfinite(number) else {"float": str(number)}
