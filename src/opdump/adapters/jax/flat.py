"""Flattens a jaxpr to one sequence of equations: calls such as `jit` are replaced by the equations of their jaxpr.

    flat = flattened(jaxpr, Place())
    flat.steps[0].reads         numbers of values, or literals of the jaxpr
    flat.pieces(2**30)          the steps in parts; each part makes at most this number of bytes

Values are numbered, because a jaxpr that is called twice appears twice, with the same variables.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from opdump.adapters.jax.names import file_of_function, frames_of, is_library, stack_text
from opdump.adapters.jax.schedule import Opaque, Outer, Ref, Row, Tap
from opdump.records import Frame

INLINED: Final[Mapping[str, tuple[str, ...]]] = {
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "core_call": ("call_jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr", "fun_jaxpr"),
    "custom_vjp_call_jaxpr": ("fun_jaxpr", "call_jaxpr"),
    "checkpoint": ("jaxpr",),
    "remat2": ("jaxpr",),
    "remat": ("jaxpr",),
}
"""Calls that are replaced by their jaxpr, and the parameters that may contain it. Names differ between releases of JAX."""

Read: TypeAlias = "int | Literal"


@dataclass(frozen=True, slots=True)
class JaxprPosition:
    """The position of a jaxpr: its path, the name stacks around it, and the lines that replace its own if it belongs to a library."""

    path: tuple[object, ...] = ()
    stack: str = ""
    called_at: Sequence[Frame] = ()

    def within(self, step: object, stack: str, scope: str, called_at: Sequence[Frame] | None = None) -> JaxprPosition:
        return JaxprPosition(
            (*self.path, step), joined(stack, scope), self.called_at if called_at is None else called_at
        )


@dataclass(frozen=True, slots=True)
class Step:
    """An equation, and its `number` in its jaxpr."""

    equation: Any
    place: JaxprPosition
    number: int
    reads: Sequence[Read]
    writes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Flat:
    """`constants` and `arguments` are numbers of values; `own` has the constants of inner jaxprs, by number."""

    steps: Sequence[Step]
    constants: Sequence[int]
    arguments: Sequence[int]
    own: Mapping[int, Any]
    results: Sequence[Read]

    def pieces(self, most_bytes: int) -> list[Piece]:
        """The steps in parts that make at most `most_bytes` each; a larger step is a part of its own.

        If a value is not an array, it cannot leave a part, and there is only one part.
        """
        cuts, made = [0], 0
        for place, step in enumerate(self.steps):
            size = bytes_made(step.equation)
            if made and made + size > most_bytes:
                cuts.append(place)
                made = 0
            made += size
        if any(opaque_kind(variable.aval) is not None for step in self.steps for variable in step.equation.outvars):
            cuts = [0]
        parts = [self.steps[first:last] for first, last in itertools.pairwise([*cuts, len(self.steps)])]
        last_read = {number: len(parts) for number in self.results if isinstance(number, int)}
        for part in reversed(range(len(parts))):
            for step in parts[part]:
                for number in step.reads:
                    if isinstance(number, int):
                        last_read.setdefault(number, part)
        return [self._piece(part, steps, last_read) for part, steps in enumerate(parts)]

    def _piece(self, part: int, steps: Sequence[Step], last_read: Mapping[int, int]) -> Piece:
        own = {number for step in steps for number in step.writes}
        reads = {number for step in steps for number in step.reads if isinstance(number, int)}
        given = sorted(reads - own - self.own.keys())
        return Piece(
            steps,
            given,
            leaves=sorted(number for number in own if last_read.get(number, part) > part),
            ends=[number for number, last in last_read.items() if last == part],
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the steps, with the numbers of values.

    `given` are read by the part, `leaves` are results or read by later parts, `ends` are not read after the part.
    """

    steps: Sequence[Step]
    given: Sequence[int]
    leaves: Sequence[int]
    ends: Sequence[int]


def flattened(jaxpr: Any, place: JaxprPosition) -> Flat:
    numbers = itertools.count()
    steps: list[Step] = []
    own: dict[int, Any] = {}

    def walk(jaxpr: Any, known: dict[Any, Read], place: JaxprPosition) -> list[Read]:
        def read(atom: Any) -> Read:
            return atom if isinstance(atom, Literal) else known[atom]

        for number, equation in enumerate(jaxpr.eqns):
            reads = [read(atom) for atom in equation.invars]
            inner = inner_jaxpr(equation)
            writes: list[Any] = []
            if inner is None:
                writes = [next(numbers) for _ in equation.outvars]
                steps.append(Step(equation, place, number, reads, writes))
            else:
                called = getattr(inner, "jaxpr", inner)
                constants = [next(numbers) for _ in called.constvars]
                own.update(zip(constants, getattr(inner, "consts", ()), strict=True))
                names = dict(zip(called.constvars, constants, strict=True)) | dict(
                    zip(called.invars, reads, strict=True)
                )
                writes = walk(called, names, _inside(equation, called, place, number))
            known.update(zip(equation.outvars, writes, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    constants = [next(numbers) for _ in jaxpr.constvars]
    arguments = [next(numbers) for _ in jaxpr.invars]
    given = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))
    results = walk(jaxpr, given, place)
    return Flat(steps, constants, arguments, own, results)


def _inside(equation: Any, called: Any, place: JaxprPosition, number: int) -> JaxprPosition:
    name = equation.primitive.name
    scope = f"jit({equation.params.get('name', '')})" if name in ("jit", "pjit") else ""
    source = file_of_function(getattr(called.debug_info, "func_src_info", "") or "")
    # JAX caches the jaxpr of a library function with the lines of its first caller, so take the lines of this call.
    called_at = (frames_of(equation.source_info.traceback) or place.called_at) if is_library(source) else None
    return place.within(number, joined(place.stack, stack_text(equation.source_info.name_stack)), scope, called_at)


def inner_jaxpr(equation: Any) -> Any:
    """The jaxpr that replaces an equation; None if the equation is not such a call."""
    for key in INLINED.get(equation.primitive.name, ()):
        if key in equation.params:
            return equation.params[key]
    return None


def equations_of(jaxpr: Any, around: str) -> Iterator[tuple[str, Any]]:
    """All equations, each with the path of equations that contain it, such as `/scan/cond`."""
    for equation in jaxpr.eqns:
        yield around, equation
        yield from equations_in(equation, around)


def equations_in(equation: Any, around: str) -> Iterator[tuple[str, Any]]:
    """The equations of all jaxprs inside an equation."""
    for jaxpr in jaxprs_in(equation):
        yield from equations_of(getattr(jaxpr, "jaxpr", jaxpr), f"{around}/{equation.primitive.name}")


def jaxprs_in(equation: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation; closed ones include their constants."""
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(each, "jaxpr", each), "eqns"):
                yield each


def references_of(closed: Any) -> list[Any]:
    """Each `jax.Ref` of the program that a jaxpr or an inner one closes over, once."""
    found = {id(value): value for value in getattr(closed, "consts", ()) if is_reference(jax.typeof(value))}
    for equation in getattr(closed, "jaxpr", closed).eqns:
        for inner in jaxprs_in(equation):
            found.update({id(value): value for value in references_of(inner)})
    return list(found.values())


def bytes_made(equation: Any) -> int:
    """The bytes of the results of an equation and of all equations inside. A `while` counts as one iteration."""
    within = 0
    for inner in jaxprs_in(equation):
        for equation_within in getattr(inner, "jaxpr", inner).eqns:
            within += bytes_made(equation_within)
    trips = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
    return within * int(trips) + sum(_bytes(variable.aval) for variable in equation.outvars)


def _bytes(aval: Any) -> int:
    item = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return int(item) * math.prod(getattr(aval, "shape", ()))


def joined(stack: str, inner: str) -> str:
    return f"{stack}/{inner}" if stack and inner else stack or inner


# The values of a jaxpr while its twin is traced: tracers, and where their values will be after a run.

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


@dataclass(frozen=True, slots=True)
class Carried:
    """The values that a loop carries from one iteration to the next.

    While the body is traced, it is not known which operator makes them, so they have the sources `marks`.
    """

    given: Sequence[Made]
    """The values before the first iteration."""
    marks: Sequence[str]

    @classmethod
    def of(cls, given: Sequence[Made], loop: int) -> Carried:
        return cls(given, [f"carried {number} of loop {loop}" for number in range(len(given))])

    def enter(self, values: Sequence[Any], inner: Taps) -> list[Made]:
        """The values in an iteration."""
        return [
            Made(value, mark, inner, None, made.after_backward)
            for value, mark, made in zip(values, self.marks, self.given, strict=True)
        ]

    def sources(self, made: Sequence[Made]) -> tuple[dict[str, str], dict[str, str]]:
        """The sources of the marked values in the first iteration and in the others. `made` is what an iteration returns."""
        first = dict(zip(self.marks, (each.source for each in self.given), strict=True))
        results = dict(zip(self.marks, (each.source for each in made), strict=True))
        return first, {mark: self._maker(mark, results) or first[mark] for mark in self.marks}

    def _maker(self, mark: str, results: Mapping[str, str]) -> str:
        """The operator that made a value in any iteration; empty if the loop never changes the value."""
        seen: set[str] = set()
        while mark in results and mark not in seen:
            seen.add(mark)
            mark = results[mark]
        return "" if mark in results else mark


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
    if jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
        array = array.astype(np.float64)
    if array.ndim or array.dtype.kind not in "biuf":
        return str(value)
    number = array.item()
    return number if array.dtype.kind != "f" or math.isfinite(number) else {"float": str(number)}
