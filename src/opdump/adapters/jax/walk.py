"""Evaluates a jaxpr once more, equation by equation, and keeps the values that somebody wants: what a twin is traced from.

    walk = Walk(selection, capacity=32)
    def twin(*arguments):
        results, taps = walk.function(closed_jaxpr, arguments)   # walk.level is what ran, by then
        return results, taps

Nothing is differentiated here: the jaxpr is final, so calls with rules of their own (`custom_vjp`) and `checkpoint` are walked through.
Bodies of `scan`, `while`, `cond` and `shard_map` give their values as further outputs. An equation that has other jaxprs is one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from opdump.adapters.graph_runtime import NamedOperator
from opdump.adapters.jax.frames import file_of_function, frames_of, is_library
from opdump.adapters.jax.names import Names, arguments_of, phase_of, scope_of, stack_text
from opdump.adapters.jax.schedule import (
    Argument,
    Branches,
    Constant,
    Equation,
    Level,
    Scan,
    Shards,
    Slot,
    While,
)
from opdump.adapters.jax.values import (
    LITERAL,
    Made,
    Taps,
    carry_facts,
    chosen,
    facts_of,
    number_of,
    outer,
    varying,
    zeros_like,
)
from opdump.graph import GraphInput, GraphNode, GraphOutput
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
"""Calls that compute what their jaxpr does, and where it stands in their parameters."""
HOST_CALLS: Final = frozenset({"debug_callback", "debug_print", "pure_callback", "io_callback"})
"""What calls functions of the program on the host."""


class Selection(Protocol):
    """Which operators leave data."""

    wants_inputs: bool
    wants_outputs: bool

    def selects(self, op_name: str, op_type: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a jaxpr stands: the path to it, the name stacks around it, and the lines that stand for those of libraries."""

    path: tuple[object, ...] = ()
    stack: str = ""
    called_at: tuple[Frame, ...] = ()

    def within(self, step: object, stack: str, scope: str, called_at: tuple[Frame, ...] | None = None) -> _Place:
        return _Place((*self.path, step), _joined(stack, scope), self.called_at if called_at is None else called_at)


class Walk:
    """One function: its names, and what was walked through last.

    `capacity` is the number of trips of a `while` whose values there is room for. `is_listed`: operators that are not selected are in the
    level, too. `notes` tells of equations whose inner values could not be had.
    """

    def __init__(self, selection: Selection, *, capacity: int) -> None:
        self.selection = selection
        self.capacity = capacity
        self.level = Level()
        self.notes: dict[str, str] = {}
        self._names = Names()

    def function(self, closed: Any, arguments: Sequence[Any], sources: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """The results of a closed jaxpr, and its taps. To be called while JAX traces. `sources` are those of the arguments."""
        jaxpr = closed.jaxpr
        taps, level = Taps(), Level()
        constants = [Made(value, f"data-{place}", taps, Constant(place)) for place, value in enumerate(closed.consts)]
        given = [
            Made(value, source, taps, Argument(place))
            for place, (value, source) in enumerate(zip(arguments, sources, strict=True))
        ]
        results = self._walk(jaxpr, constants, given, taps, level, _Place())
        self.level = level
        return [made.value for made in results], taps.values

    def _walk(
        self, jaxpr: Any, constants: Sequence[Made], given: Sequence[Made], taps: Taps, level: Level, place: _Place
    ) -> list[Made]:
        known: dict[Any, Made] = dict(zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, given, strict=True))

        def read(atom: Any) -> Made:
            return Made(atom.val, "", taps, LITERAL) if isinstance(atom, Literal) else known[atom]

        for number, equation in enumerate(jaxpr.eqns):
            made = self._equation(equation, [read(atom) for atom in equation.invars], taps, level, place, number)
            known.update(zip(equation.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        name = equation.primitive.name
        inner = inner_jaxpr(equation)
        if inner is not None:
            return self._inline(equation, inner, given, taps, level, place, number)
        if name in HOST_CALLS and not equation.outvars:
            return []
        special = _SPECIAL.get(name)
        if special is not None:
            before = len(taps.values), len(level.entries)
            try:
                return special(self, equation, given, taps, level, place, number)
            except Exception as error:  # noqa: BLE001  the operator is then one without an inside, and a note says so
                taps.take_back(before[0])
                del level.entries[before[1] :]
                self.notes[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return self._operator(equation, given, taps, level, place, number)

    def _inline(
        self, equation: Any, inner: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        name = equation.primitive.name
        called = f"jit({equation.params.get('name', '')})" if name in ("jit", "pjit") else ""
        jaxpr = getattr(inner, "jaxpr", inner)
        source = file_of_function(getattr(jaxpr.debug_info, "func_src_info", "") or "")
        # JAX keeps the jaxpr of a function of its own, with the lines of whoever called it first.
        called_at = (frames_of(equation.source_info.traceback) or place.called_at) if is_library(source) else None
        constants = [Made(value, "", taps, None) for value in getattr(inner, "consts", ())]
        within = place.within(
            number, _joined(place.stack, stack_text(equation.source_info.name_stack)), called, called_at
        )
        with equation.ctx.manager:
            return self._walk(jaxpr, constants, given, taps, level, within)

    def _operator(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        operator, hlo_name, after = self._named(equation, given, place, number)
        results = _bind(equation, [made.value for made in given])
        made = [
            Made(value, f"{operator.op_name}:{slot}", taps, None, after_backward=after)
            for slot, value in enumerate(results)
        ]
        node = _node(operator, given, made)
        if operator.skip:
            level.entries.append(Equation(operator, node, hlo_name))
            return made
        selection = self.selection
        level.entries.append(
            Equation(
                operator,
                node,
                hlo_name,
                _slots(given) if selection.wants_inputs else (),
                _slots(made) if selection.wants_outputs else (),
            )
        )
        return made

    def _named(
        self, equation: Any, given: Sequence[Made], place: _Place, number: int
    ) -> tuple[NamedOperator, str, bool]:
        """The operator of an equation, its name in a compiled program, and whether its values follow from what is differentiated."""
        stack = _joined(place.stack, stack_text(equation.source_info.name_stack))
        follows = any(made.after_backward for made in given)
        phase = phase_of(stack, follows_backward=follows)
        kind = equation.primitive.name
        name = self._names.of((*place.path, number), scope_of(stack), kind, phase)
        arguments = arguments_of(equation.params)
        for slot, made in enumerate(given):
            if made.ref == LITERAL:
                arguments[f"x{slot}"] = number_of(made.value)
        operator = NamedOperator(
            kind,
            name,
            arguments=arguments,
            stack=place.called_at or frames_of(equation.source_info.traceback),
            kernel=f"lax::{kind}",
            skip="" if self.selection.selects(name, kind) else "not selected",
            phase=phase,
        )
        return operator, _joined(stack, kind), follows or phase == "backward"

    # Bodies. Each gives its taps as further results, which become taps of the level around it.

    def _scan(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        parameters = equation.params
        body, length, reverse = parameters["jaxpr"], parameters["length"], parameters["reverse"]
        first, after = parameters["num_consts"], parameters["num_consts"] + parameters["num_carry"]
        within = place.within(number, _joined(place.stack, stack_text(equation.source_info.name_stack)), "scan")
        inner_level = Level()

        def trip(carry: list[Any], rows: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
            inner, inner_level.entries = Taps(), []
            entered = [outer(made, inner) for made in given[:first]]
            entered += [Made(value, "", inner) for value in carry]
            entered += [
                Made(value, made.source, inner, None, made.after_backward, around=made, is_row=True)
                for value, made in zip(rows, given[after:], strict=True)
            ]
            carry_facts(entered[first:after], given[first:after])
            results = self._closed(body, entered, inner, inner_level, within)
            count = after - first
            return [made.value for made in results[:count]], ([made.value for made in results[count:]], inner.values)

        with equation.ctx.manager:
            carried, (stacked, inner_taps) = lax.scan(
                trip,
                [made.value for made in given[first:after]],
                [made.value for made in given[after:]],
                length=length,
                reverse=reverse,
            )
        rows = tuple(taps.add(value).index for value in inner_taps)
        level.entries.append(Scan(inner_level, rows, length, reverse))
        return self._results(equation, given, [*carried, *stacked], taps, level, place, number)

    def _while(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        parameters = equation.params
        condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        first = parameters["cond_nconsts"]
        begin = first + parameters["body_nconsts"]
        stack = _joined(place.stack, stack_text(equation.source_info.name_stack))
        at_condition = place.within((number, "cond"), stack, "while/cond")
        at_body = place.within((number, "body"), stack, "while")
        levels = Level(), Level()
        capacity = self.capacity

        def test(carry: Sequence[Any], inner: Taps, tested: Level) -> Any:
            # Behind the last trip the condition is looked at in the level around the loop.
            constants = given[:first] if inner is taps else [outer(made, inner) for made in given[:first]]
            entered = [*constants, *(Made(value, "", inner) for value in carry)]
            return self._closed(condition, entered, inner, tested, at_condition)[0].value

        def trip(carry: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
            tested, ran = Taps(), Taps()
            levels[0].entries, levels[1].entries = [], []
            goes_on = test(carry, tested, levels[0])
            entered = [outer(made, ran) for made in given[first:begin]] + [Made(value, "", ran) for value in carry]
            carry_facts(entered[begin - first :], given[begin:])
            results = [made.value for made in self._closed(body, entered, ran, levels[1], at_body)]
            return [chosen(goes_on, *pair) for pair in zip(results, carry, strict=True)], tested.values, ran.values

        def kept(state: Any) -> Any:
            count, carry, rows = state
            carry, tested, ran = trip(carry)
            rows = [
                lax.dynamic_update_index_in_dim(row, value, jnp.minimum(count, capacity - 1), 0)
                for row, value in zip(rows, (*tested, *ran), strict=True)
            ]
            return count + 1, carry, rows

        with equation.ctx.manager:
            begun = [made.value for made in given[begin:]]
            _, tested, ran = jax.eval_shape(trip, begun)
            room = [zeros_like((capacity, *each.shape), each) for each in (*tested, *ran)]
            count, carried, rows = lax.while_loop(
                lambda state: jnp.any(test(state[1], Taps(), Level())), kept, (jnp.int32(0), begun, room)
            )
            last = Level()
            test(carried, taps, last)
        indices = tuple(taps.add(value).index for value in rows)
        level.entries.append(
            While(
                levels[0],
                levels[1],
                last,
                indices[: len(tested)],
                indices[len(tested) :],
                taps.add(count).index,
                capacity,
            )
        )
        return self._results(equation, given, carried, taps, level, place, number)

    def _cond(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        branches = equation.params["branches"]
        stack = _joined(place.stack, stack_text(equation.source_info.name_stack))
        levels = [Level() for _ in branches]

        def branch(which: int) -> tuple[list[Any], list[Any]]:
            inner, levels[which].entries = Taps(), []
            entered = [outer(made, inner) for made in given[1:]]
            within = place.within((number, which), stack, f"cond/branch_{which}")
            results = self._closed(branches[which], entered, inner, levels[which], within)
            return [made.value for made in results], inner.values

        every = range(len(branches))
        with equation.ctx.manager:
            shapes = [jax.eval_shape(lambda which=which: branch(which)[1]) for which in every]

            def padded(which: int) -> tuple[list[Any], list[list[Any]]]:
                results, ran = branch(which)
                rows = [
                    ran if other == which else [zeros_like(each.shape, each) for each in wanted]
                    for other, wanted in enumerate(shapes)
                ]
                return results, rows

            results, inner_taps = lax.switch(given[0].value, [partial(padded, which) for which in every])
        indices = tuple(tuple(taps.add(value).index for value in each) for each in inner_taps)
        level.entries.append(Branches(given[0].wanted(), tuple(levels), indices))
        return self._results(equation, given, results, taps, level, place, number)

    def _shard_map(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: _Place, number: int
    ) -> list[Made]:
        parameters = equation.params
        mesh, checks = parameters["mesh"], parameters.get("check_vma", True)
        axes = tuple(name for name in mesh.axis_names if name in parameters.get("manual_axes", mesh.axis_names))
        within = place.within(number, _joined(place.stack, stack_text(equation.source_info.name_stack)), "shard_map")
        inner_level = Level()

        def shard(*pieces: Any) -> tuple[list[Any], list[Any]]:
            inner, inner_level.entries = Taps(), []
            entered = [
                Made(piece, made.source, inner, None, made.after_backward)
                for piece, made in zip(pieces, given, strict=True)
            ]
            results = self._walk(parameters["jaxpr"], (), entered, inner, inner_level, within)
            rows = [varying(value, axes) if checks else value for value in inner.values]
            return [made.value for made in results], [row[None] for row in rows]

        with equation.ctx.manager:
            results, inner_taps = jax.shard_map(
                shard,
                mesh=mesh,
                in_specs=tuple(parameters["in_specs"]),
                out_specs=(list(parameters["out_specs"]), jax.sharding.PartitionSpec(axes)),
                check_vma=checks,
                axis_names=frozenset(axes),
            )(*[made.value for made in given])
        rows = tuple(taps.add(value).index for value in inner_taps)
        level.entries.append(Shards(inner_level, rows, math.prod(mesh.shape[name] for name in axes)))
        return self._results(equation, given, results, taps, level, place, number)

    def _closed(self, closed: Any, entered: Sequence[Made], taps: Taps, level: Level, place: _Place) -> list[Made]:
        constants = [Made(value, "", taps, None) for value in closed.consts]
        return self._walk(closed.jaxpr, constants, entered, taps, level, place)

    def _results(
        self,
        equation: Any,
        given: list[Made],
        values: Sequence[Any],
        taps: Taps,
        level: Level,
        place: _Place,
        number: int,
    ) -> list[Made]:
        """The results of an equation with a body. It is listed, too, as what runs other operators."""
        operator, hlo_name, after = self._named(equation, given, place, number)
        made = [Made(value, f"{operator.op_name}:{slot}", taps, None, after) for slot, value in enumerate(values)]
        operator = replace(operator, skip="control flow")
        level.entries.insert(-1, Equation(operator, _node(operator, given, made), hlo_name))
        return made


_SPECIAL: Final[Mapping[str, Callable[..., list[Made]]]] = {
    "scan": Walk._scan,
    "while": Walk._while,
    "cond": Walk._cond,
    "shard_map": Walk._shard_map,
}


def inner_jaxpr(equation: Any) -> Any:
    for key in INLINED.get(equation.primitive.name, ()):
        if key in equation.params:
            return equation.params[key]
    return None


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """Runs the equation on these values, as JAX evaluates a jaxpr. JAX 0.7 and later give no functions beside the parameters."""
    found = equation.primitive.get_bind_params(equation.params)
    functions, parameters = found if isinstance(found, tuple) else ((), found)
    with equation.ctx.manager or nullcontext():
        results = equation.primitive.bind(*functions, *values, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def _slots(values: Sequence[Made]) -> tuple[Slot, ...]:
    """The slots of these values; a number that is written in the jaxpr has none."""
    slots = []
    for slot, made in enumerate(values):
        ref = made.wanted()
        if ref != LITERAL:
            slots.append(Slot(slot, ref, made.source))
    return tuple(slots)


def _node(operator: NamedOperator, given: Sequence[Made], made: Sequence[Made]) -> GraphNode:
    """The operator in the graph of the function."""
    return GraphNode(
        op_name=operator.op_name,
        op_type=operator.op_type,
        phase=operator.phase,
        inputs=tuple(GraphInput(each.source, *facts_of(each.value)) for each in given if each.ref != LITERAL),
        outputs=tuple(GraphOutput(*facts_of(each.value)) for each in made),
        attributes=operator.arguments,
        stack=operator.stack,
    )


def _joined(stack: str, inner: str) -> str:
    return f"{stack}/{inner}" if stack and inner else stack or inner
