"""Evaluates a jaxpr equation by equation and keeps the recorded values. A twin is traced from this evaluation.

    walk = Walk(selection, names, host_calls.again, capacity=32)
    def twin(*arguments):
        taps = Taps()
        left = walk.piece(piece, {number: Made(value, ...), ...}, taps, flat.own)
        return taps.values              # walk.level then has the operators

The jaxpr is already differentiated, so `checkpoint` and calls with rules of their own (`custom_vjp`) are replaced by their equations
(`flat.py`). Bodies of `scan`, `while`, `cond` and `shard_map` return their values as additional outputs. Other equations with jaxprs
are one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from opdump.adapters.graph_runtime import NamedOperator
from opdump.adapters.jax.flat import (
    LITERAL,
    Carried,
    JaxprPosition,
    Made,
    Piece,
    Read,
    Step,
    Taps,
    chosen,
    equations_in,
    facts_of,
    flattened,
    joined,
    number_of,
    outer,
    varying,
    zeros_like,
)
from opdump.adapters.jax.interception import HOST_CALLS, WITH_RESULTS
from opdump.adapters.jax.names import Names, arguments_of, frames_of, phase_of, scope_of, stack_text
from opdump.adapters.jax.schedule import Branches, Equation, Level, Scan, Shards, Slot, While, with_sources
from opdump.graph import GraphInput, GraphNode, GraphOutput


class Selection(Protocol):
    """The operators to record."""

    wants_inputs: bool
    wants_outputs: bool

    def selects(self, op_name: str, op_type: str) -> bool: ...


class Walk:
    """Walks through the parts of one function, which share its names.

    `capacity` is the number of iterations of a `while` whose values are kept. `level` includes the operators that are not selected.
    `notes` has the reasons why equations are not recorded, by primitive.
    """

    def __init__(
        self, selection: Selection, names: Names, host_call: Callable[[Any], list[Any]], *, capacity: int
    ) -> None:
        """`host_call` returns the results of an equation that calls the host."""
        self.selection = selection
        self._host_call = host_call
        self.capacity = capacity
        self.level = Level()
        self.notes: dict[str, str] = {}
        self._names = names
        self._references: Mapping[int, Any] = {}
        self._loops = 0

    def piece(
        self,
        piece: Piece,
        given: Mapping[int, Made],
        taps: Taps,
        own: Mapping[int, Any],
        references: Mapping[int, Any] | None = None,
    ) -> dict[int, Made]:
        """Walk through a part of a function; its operators are then in `level`. Must be called while JAX traces.

        `given` has the values that the part reads, `own` the constants of inner jaxprs. `references` replaces each `jax.Ref` of the program
        that a jaxpr closes over, by identity. Returns the values that leave the part.
        """
        self.level = Level()
        self._references = references or {}
        known = self._walk(piece.steps, given, own, taps, self.level)
        return {number: known[number] for number in piece.leaves}

    def _walk(
        self, steps: Sequence[Step], given: Mapping[int, Made], own: Mapping[int, Any], taps: Taps, level: Level
    ) -> dict[int, Made]:
        known = {number: self._constant(value, taps) for number, value in own.items()} | dict(given)
        for step in steps:
            read = [_read(each, known, taps) for each in step.reads]
            made = self._equation(step.equation, read, taps, level, step.place, step.number)
            known.update(zip(step.writes, made, strict=True))
        return known

    def _equation(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: JaxprPosition, number: int
    ) -> list[Made]:
        name = equation.primitive.name
        if name in HOST_CALLS and name not in WITH_RESULTS:
            return []
        special = _SPECIAL.get(name)
        if special is not None:
            before = len(taps.values), len(level.entries)
            try:
                return special(self, equation, given, taps, level, place, number)
            except Exception as error:  # noqa: BLE001  recorded as one operator, with a note
                taps.take_back(before[0])
                del level.entries[before[1] :]
                self.notes[name] = f"the operators inside {name} are not recorded: {_reason(error)}"
        return self._operator(equation, given, taps, level, place, number)

    def _operator(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: JaxprPosition, number: int
    ) -> list[Made]:
        name, values = equation.primitive.name, [made.value for made in given]
        results = self._host_call(equation) if name in WITH_RESULTS else _bind(equation, values)
        try:
            return self._listed(equation, given, results, taps, level, place, number)
        except Exception as error:  # noqa: BLE001  the other operators are recorded, and a note names this one
            self.notes[name] = f"{name} is not recorded: {_reason(error)}"
            return [Made(value, "", taps) for value in results]

    def _listed(
        self,
        equation: Any,
        given: list[Made],
        results: Sequence[Any],
        taps: Taps,
        level: Level,
        place: JaxprPosition,
        number: int,
    ) -> list[Made]:
        operator, hlo_name, after = self._named(equation, given, place, number)
        made = [
            Made(value, f"{operator.op_name}:{slot}", taps, None, after_backward=after)
            for slot, value in enumerate(results)
        ]
        node = _node(operator, given, made)
        selection = self.selection
        reads = () if operator.skip or not selection.wants_inputs else _slots(given)
        writes = () if operator.skip or not selection.wants_outputs else _slots(made)
        level.entries.append(Equation(operator, node, hlo_name, reads, writes))
        return made

    def _named(
        self, equation: Any, given: Sequence[Made], place: JaxprPosition, number: int
    ) -> tuple[NamedOperator, str, bool]:
        """The operator of an equation, its name in a compiled program, and whether its values depend on the backward pass."""
        stack = joined(place.stack, stack_text(equation.source_info.name_stack))
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
        return operator, joined(stack, kind), follows or phase == "backward"

    # Bodies. Each returns its taps as additional results, which become taps of the level around it.

    def _scan(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: JaxprPosition, number: int
    ) -> list[Made]:
        parameters = equation.params
        body, length, reverse = parameters["jaxpr"], parameters["length"], parameters["reverse"]
        first, after = parameters["num_consts"], parameters["num_consts"] + parameters["num_carry"]
        within = place.within(number, joined(place.stack, stack_text(equation.source_info.name_stack)), "scan")
        inner_level, carried, made_inside = Level(), self._carried(given[first:after]), list[Made]()

        def trip(carry: list[Any], rows: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
            # JAX may trace a body more than once: keep only the entries of the last trace.
            inner, inner_level.entries = Taps(), []
            entered = [outer(made, inner) for made in given[:first]]
            entered += carried.enter(carry, inner)
            entered += [
                Made(value, made.source, inner, None, made.after_backward, around=made, is_row=True)
                for value, made in zip(rows, given[after:], strict=True)
            ]
            made_inside[:] = results = self._closed(body, entered, inner, inner_level, within)
            count = after - first
            return [made.value for made in results[:count]], ([made.value for made in results[count:]], inner.values)

        with equation.ctx.manager:
            left, (stacked, inner_taps) = lax.scan(
                trip,
                [made.value for made in given[first:after]],
                [made.value for made in given[after:]],
                length=length,
                reverse=reverse,
            )
        rows = tuple(taps.add(value).index for value in inner_taps)
        begin, go_on = carried.sources(made_inside[: after - first])
        levels = with_sources(inner_level, begin), with_sources(inner_level, go_on)
        level.entries.append(Scan(*levels, rows, length, reverse))
        sources = [go_on.get(each.source, each.source) for each in made_inside] if length else ()
        return self._results(equation, given, [*left, *stacked], taps, level, place, number, sources)

    def _while(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: JaxprPosition, number: int
    ) -> list[Made]:
        parameters = equation.params
        condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        first = parameters["cond_nconsts"]
        begin = first + parameters["body_nconsts"]
        stack = joined(place.stack, stack_text(equation.source_info.name_stack))
        at_condition = place.within((number, "cond"), stack, "while/cond")
        at_body = place.within((number, "body"), stack, "while")
        levels = Level(), Level()
        capacity, carried, made_inside = self.capacity, self._carried(given[begin:]), list[Made]()

        def test(carry: Sequence[Any], inner: Taps, tested: Level) -> Any:
            # The final evaluation of the condition belongs to the level around the loop.
            constants = given[:first] if inner is taps else [outer(made, inner) for made in given[:first]]
            entered = [*constants, *carried.enter(carry, inner)]
            return self._closed(condition, entered, inner, tested, at_condition)[0].value

        def trip(carry: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
            tested, ran = Taps(), Taps()
            levels[0].entries, levels[1].entries = [], []
            goes_on = test(carry, tested, levels[0])
            entered = [outer(made, ran) for made in given[first:begin]] + carried.enter(carry, ran)
            made_inside[:] = self._closed(body, entered, ran, levels[1], at_body)
            results = [made.value for made in made_inside]
            return [chosen(goes_on, *pair) for pair in zip(results, carry, strict=True)], tested.values, ran.values

        def kept(state: Any) -> Any:
            count, carry, rows = state
            carry, tested, ran = trip(carry)
            # Iterations beyond the capacity overwrite the last row. `count` shows how many there were.
            rows = [
                lax.dynamic_update_index_in_dim(row, value, jnp.minimum(count, capacity - 1), 0)
                for row, value in zip(rows, (*tested, *ran), strict=True)
            ]
            return count + 1, carry, rows

        with equation.ctx.manager:
            begun = [made.value for made in given[begin:]]
            # The buffers for the taps must exist before the loop, so trace one iteration for their shapes.
            _, tested, ran = jax.eval_shape(trip, begun)
            room = [zeros_like((capacity, *each.shape), each) for each in (*tested, *ran)]
            count, left, rows = lax.while_loop(
                lambda state: jnp.any(test(state[1], Taps(), Level())), kept, (jnp.int32(0), begun, room)
            )
            last = Level()
            test(left, taps, last)
        indices = tuple(taps.add(value).index for value in rows)
        first_sources, later_sources = carried.sources(made_inside)
        level.entries.append(
            While(
                with_sources(levels[0], first_sources),
                with_sources(levels[1], first_sources),
                (with_sources(levels[0], later_sources), with_sources(levels[1], later_sources)),
                with_sources(last, later_sources),
                indices[: len(tested)],
                indices[len(tested) :],
                taps.add(count).index,
                capacity,
            )
        )
        return self._results(equation, given, left, taps, level, place, number, [*later_sources.values()])

    def _cond(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: JaxprPosition, number: int
    ) -> list[Made]:
        branches = equation.params["branches"]
        stack = joined(place.stack, stack_text(equation.source_info.name_stack))
        levels = [Level() for _ in branches]

        def branch(which: int) -> tuple[list[Any], list[Any]]:
            inner, levels[which].entries = Taps(), []
            entered = [outer(made, inner) for made in given[1:]]
            within = place.within((number, which), stack, f"cond/branch_{which}")
            results = self._closed(branches[which], entered, inner, levels[which], within)
            return [made.value for made in results], inner.values

        every = range(len(branches))
        with equation.ctx.manager:
            # All branches must return the same types: each returns its taps, and zeros for the taps of the others.
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
        index = taps.add(jnp.asarray(given[0].value)) if given[0].ref == LITERAL else given[0].wanted()
        level.entries.append(Branches(index, tuple(levels), indices))
        return self._results(equation, given, results, taps, level, place, number)

    def _shard_map(
        self, equation: Any, given: list[Made], taps: Taps, level: Level, place: JaxprPosition, number: int
    ) -> list[Made]:
        parameters = equation.params
        mesh, checks = parameters["mesh"], parameters.get("check_vma", True)
        axes = tuple(name for name in mesh.axis_names if name in parameters.get("manual_axes", mesh.axis_names))
        within = place.within(number, joined(place.stack, stack_text(equation.source_info.name_stack)), "shard_map")
        inner_level = Level()

        def shard(*pieces: Any) -> tuple[list[Any], list[Any]]:
            inner, inner_level.entries = Taps(), []
            entered = [
                Made(piece, made.source, inner, None, made.after_backward)
                for piece, made in zip(pieces, given, strict=True)
            ]
            results = self._jaxpr(parameters["jaxpr"], (), entered, inner, inner_level, within)
            rows = [varying(value, axes) if checks else value for value in inner.values]
            # With a leading axis, the taps of all devices are joined along it.
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

    def _carried(self, given: Sequence[Made]) -> Carried:
        self._loops += 1
        return Carried.of(given, self._loops)

    def _constant(self, value: Any, taps: Taps) -> Made:
        """A constant that a jaxpr closes over."""
        return Made(self._references.get(id(value), value), "", taps, None)

    def _closed(
        self, closed: Any, entered: Sequence[Made], taps: Taps, level: Level, place: JaxprPosition
    ) -> list[Made]:
        constants = [self._constant(value, taps) for value in closed.consts]
        return self._jaxpr(closed.jaxpr, constants, entered, taps, level, place)

    def _jaxpr(
        self,
        jaxpr: Any,
        constants: Sequence[Made],
        entered: Sequence[Made],
        taps: Taps,
        level: Level,
        place: JaxprPosition,
    ) -> list[Made]:
        flat = flattened(jaxpr, place)
        given = dict(zip(flat.constants, constants, strict=True)) | dict(zip(flat.arguments, entered, strict=True))
        known = self._walk(flat.steps, given, flat.own, taps, level)
        return [_read(each, known, taps) for each in flat.results]

    def _results(
        self,
        equation: Any,
        given: list[Made],
        values: Sequence[Any],
        taps: Taps,
        level: Level,
        place: JaxprPosition,
        number: int,
        sources: Sequence[str] = (),
    ) -> list[Made]:
        """The results of an equation with a body. The equation is listed too, as control flow.

        `sources` are the operators in the body that made the results, if they are known; else the equation is named.
        """
        operator, hlo_name, after = self._named(equation, given, place, number)
        sources = sources or [f"{operator.op_name}:{slot}" for slot in range(len(values))]
        made = [Made(value, source, taps, None, after) for value, source in zip(values, sources, strict=True)]
        operator = replace(operator, skip="control flow")
        # Before the loop or branch itself, which the caller has just appended.
        level.entries.insert(-1, Equation(operator, _node(operator, given, made), hlo_name))
        return made


_SPECIAL: Final[Mapping[str, Callable[..., list[Made]]]] = {
    "scan": Walk._scan,
    "while": Walk._while,
    "cond": Walk._cond,
    "shard_map": Walk._shard_map,
}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _read(each: Read, known: Mapping[int, Made], taps: Taps) -> Made:
    return known[each] if isinstance(each, int) else Made(each.val, "", taps, LITERAL)


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """Run the equation on these values, as JAX evaluates a jaxpr.

    Raises ValueError if this would call a function of the program on the host a second time.
    """
    for _, within in equations_in(equation, ""):
        if within.primitive.name in HOST_CALLS:
            raise ValueError(f"{equation.primitive.name} calls the program on the host ({within.primitive.name})")
    # JAX 0.6 returns functions and parameters, later releases only the parameters.
    found = equation.primitive.get_bind_params(equation.params)
    functions, parameters = found if isinstance(found, tuple) else ((), found)
    with equation.ctx.manager or nullcontext():
        results = equation.primitive.bind(*functions, *values, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def _slots(values: Sequence[Made]) -> tuple[Slot, ...]:
    """The slots of these values; literals of the jaxpr have none."""
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
