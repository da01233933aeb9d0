"""The values of a jaxpr while its twin is traced: tracers, and where their values will be after a run."""

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
    """A value in an environment. `ref` is None until `wanted` is called, so that unused values are not returned.

    If the value came from the level around this one, `around` is its value there; if `is_row`, each iteration reads one row of it.
    """

    value: Any
    source: str
    taps: Taps
    ref: Ref | None = None
    after_backward: bool = False
    around: Made | None = None
    is_row: bool = False

    def wanted(self) -> Ref:
        """The location of the value, relative to its level. Adds a tap if necessary."""
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
    """The values that a level returns, and their owners."""

    values: list[Any] = field(default_factory=list)
    owners: list[Made | None] = field(default_factory=list)

    def add(self, value: Any, owner: Made | None = None) -> Tap:
        self.values.append(_storable(value))
        self.owners.append(owner)
        return Tap(len(self.values) - 1)

    def take_back(self, count: int) -> None:
        """Remove all but the first `count` taps."""
        for owner in self.owners[count:]:
            if owner is not None:
                owner.ref = None
        del self.values[count:], self.owners[count:]


def outer(made: Made, inner: Taps) -> Made:
    """A value of the level around a body, inside the body."""
    if made.ref == LITERAL:
        return Made(made.value, "", inner, LITERAL)
    return Made(made.value, made.source, inner, None, made.after_backward, around=made)


def carry_facts(entered: Sequence[Made], given: Sequence[Made]) -> None:
    """Give the carried values of a loop the sources that they had before the first iteration."""
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
    """The type as text if its values are not arrays; None if they are."""
    if (
        is_reference(aval)
        or not hasattr(aval, "dtype")
        or not hasattr(aval, "shape")
        or aval.dtype == jax.dtypes.float0
    ):
        return str(aval)
    return None


def is_reference(aval: Any) -> bool:
    """Whether the value is not an array but memory that functions write into (`jax.Ref`)."""
    return "Ref" in type(aval).__name__


def new_reference(content: Any) -> Any:
    """A new `jax.Ref` with this content."""
    if hasattr(jax, "new_ref"):  # from JAX 0.7 on
        return jax.new_ref(content)
    return importlib.import_module("jax.experimental").mutable_array(content)


def _storable(value: Any) -> Any:
    """The value as an array of numbers; a random key becomes its key data."""
    return jax.random.key_data(value) if _is_key(jax.typeof(value)) else value


def chosen(goes_on: Any, after: Any, before: Any) -> Any:
    """The carried value after an iteration. In a batched loop, elements whose own loop has ended keep `before`."""
    if not goes_on.ndim:
        return after
    return jnp.where(goes_on.reshape(goes_on.shape + (1,) * (after.ndim - goes_on.ndim)), after, before)


def zeros_like(shape: tuple[int, ...], like: Any) -> Any:
    """Zeros of the type of `like`, varying over the same mesh axes."""
    zeros = jnp.zeros(shape, like.dtype)
    return varying(zeros, tuple(_varies_on(like)))


def varying(value: Any, axes: tuple[str, ...]) -> Any:
    """The value, declared to vary over these mesh axes."""
    missing = tuple(axis for axis in axes if axis not in _varies_on(jax.typeof(value)))
    if not missing:
        return value
    return lax.pcast(value, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(value, missing)


def _varies_on(aval: Any) -> frozenset[str]:
    """The mesh axes over which a value varies."""
    # From JAX 0.9 on the axes are in a separate object.
    kind = getattr(aval, "mat", None) or getattr(aval, "manual_axis_type", None)
    found = getattr(kind, "varying", None)
    return frozenset(found if found is not None else getattr(aval, "vma", None) or ())


def number_of(value: Any) -> Any:
    """A literal as a JSON value; NaN and infinities in the form of all arguments: `{"float": "-inf"}`."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "bif":
        return str(value)
    number = array.item()
    return number if array.dtype.kind != "f" or math.isfinite(number) else {"float": str(number)}
