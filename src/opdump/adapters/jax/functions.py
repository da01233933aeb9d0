"""The compiled functions of a program and their calls: origin, arguments and results of a function, and the steps of the program."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import Literal

from opdump.adapters.base import DumpComplete
from opdump.adapters.jax.flat import (
    Flat,
    JaxprPosition,
    Step,
    equations_in,
    equations_of,
    flattened,
    is_reference,
    number_of,
    references_of,
)
from opdump.adapters.jax.host import Facts, KnownFacts
from opdump.adapters.jax.interception import HOST_CALLS, WITH_RESULTS, callbacks_of
from opdump.adapters.jax.names import arguments_of, file_of_function, is_of_jax, stack_text, value_name
from opdump.adapters.jax.schedule import Blocks, Level, Prepared, Reads
from opdump.adapters.jax.twin import Twin
from opdump.recorder import Recorder
from opdump.records import Frame

# The compiled functions of a program: their origin, arguments and results, and which results are updated arguments.

_SEEN_BY_NO_ONE: Final = frozenset(
    {"RefEffect", "InternalMutableArrayEffect", "NamedAxisEffect", "NoDCEEffect", "ShapeAssertionEffect", "ErrorEffect"}
)
"""Class names of effects that a second run may have, because nothing outside of the function sees them. Any other effect must happen only once."""
MOST_FUNCTIONS: Final = 512
"""Maximum number of functions that are kept. JAX makes a new jaxpr for every new shape, so a program can have any number."""
_MOST_ELEMENTS: Final = 64
"""Maximum number of elements of a constant in the equations of an eager operator."""
EAGER_GRAPH: Final = 0
"""The graph number of operators that the program runs one by one."""


@dataclass(slots=True)
class Function:
    """One compiled function: a jaxpr, with its name in the program."""

    closed: Any
    name: str
    donated: Sequence[bool]
    graph_id: int
    argument_names: tuple[str, ...]
    result_names: tuple[str, ...]
    is_programs: bool
    """Whether the function is from the program or a library on JAX. A function of JAX itself is an operator that the program runs one by one."""
    has_backward: bool
    updates: dict[int, int]
    """The number of each result that is an updated argument, and the number of that argument."""
    key: tuple[object, ...]
    """Identifies the function; equal for all its jaxprs."""
    twin: Twin | None = None
    obstacle: str = ""
    """Why it has no twin."""
    calls_host: bool = False
    """Whether it calls functions of the program on the host."""
    callbacks: Sequence[Any] = ()
    """The host functions that return results. The twin receives the same results."""
    is_told: bool = False
    """Whether the deviation of its twin is already in the dump."""
    blocks: Blocks | None = None
    """The operators of the twin, and whether XLA kept, fused or removed them."""
    argument_facts: KnownFacts = field(default_factory=KnownFacts)
    result_facts: KnownFacts = field(default_factory=KnownFacts)
    reads: tuple[Sequence[Facts], Level, Reads] | None = None
    """The arguments that its operators read; valid for these facts and this level."""
    as_operator: EagerOperator | None = None
    """If the program runs it as an operator."""
    calls: dict[Sequence[Frame], Prepared] = field(default_factory=dict)
    """Its calls as operators, by the calling lines of the program."""
    shown: dict[int, Level] = field(default_factory=dict)
    by_sources: dict[tuple[int, frozenset[tuple[str, str]]], Level] = field(default_factory=dict)
    """Levels with the makers of the arguments, by the identity of the level in `shown` and by these makers."""
    """Levels whose operators are in the graph of the dump, by identity."""

    @property
    def returns_state(self) -> bool:
        """Whether it returns updated arguments, as a training step does."""
        return any(self.donated) or bool(self.updates)


class Functions:
    """The functions of a program, by jaxpr."""

    def __init__(self) -> None:
        self._known: dict[int, Function] = {}
        self._graphs: dict[tuple[object, ...], int] = {}
        self._named: Counter[str] = Counter()

    def of(self, closed: Any, name: str, donated: Sequence[bool]) -> Function:
        # The identity of a jaxpr may be reused, so the function keeps the jaxpr and is compared with it.
        known = self._known.get(id(closed))
        if known is None or known.closed is not closed:
            if len(self._known) >= MOST_FUNCTIONS:
                self._known.pop(next(iter(self._known)))
            known = self._known[id(closed)] = self._new(closed, name, donated)
        return known

    def _new(self, closed: Any, name: str, donated: Sequence[bool]) -> Function:
        jaxpr = closed.jaxpr
        debug_info = jaxpr.debug_info
        source = getattr(debug_info, "func_src_info", "") or ""
        is_programs = not is_of_jax(file_of_function(source))
        stacks = [stack_text(equation.source_info.name_stack) for equation in jaxpr.eqns]
        has_backward = any("transpose(" in stack for stack in stacks)
        arguments = _named_values(getattr(debug_info, "arg_names", None), len(jaxpr.invars), "x")
        results = _named_values(getattr(debug_info, "result_paths", None), len(jaxpr.outvars), "y")
        # JAX splits a function to differentiate it, and gives the parts its name. The other fields tell them apart.
        key = (name, source, has_backward, len(jaxpr.invars), len(jaxpr.outvars))
        graph = EAGER_GRAPH
        if is_programs:
            graph = self._graphs.setdefault((key, tuple(map(str, closed.in_avals))), len(self._graphs) + 1)
        return Function(
            closed,
            name,
            donated,
            graph,
            arguments,
            results,
            is_programs,
            has_backward,
            _updates(closed, arguments, results, has_backward=has_backward) if is_programs else {},
            key,
            calls_host=not HOST_CALLS.isdisjoint(_primitives(jaxpr)),
        )


def _named_values(paths: Sequence[str | None] | None, count: int, other: str) -> tuple[str, ...]:
    """Unique names of arguments or results."""
    if paths is None or len(paths) != count:
        return tuple(f"{other}{place}" for place in range(count))
    seen: Counter[str] = Counter()
    names = []
    for place, path in enumerate(paths):
        name = value_name(path) if path else f"{other}{place}"
        names.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return tuple(names)


def _updates(closed: Any, arguments: Sequence[str], results: Sequence[str], *, has_backward: bool) -> dict[int, int]:
    """The results that have the type, shape and path (without the root) of an argument and are not gradients, by number.

    If no path matches and the function differentiates something, the type and shape are enough: a single array has no path.
    """
    waiting: dict[tuple[str, str], list[int]] = {}
    for place, (name, aval) in enumerate(zip(arguments, closed.in_avals, strict=True)):
        for path in _paths(name):
            waiting.setdefault((path, aval.str_short()), []).append(place)
    found: dict[int, int] = {}
    for place, (name, aval) in enumerate(zip(results, closed.out_avals, strict=True)):
        for path in _paths(name):
            free = [each for each in waiting.get((path, aval.str_short()), ()) if each not in found.values()]
            if free:
                found[place] = free[0]
                break
    found = found or (_updates_by_type(closed) if has_backward else {})
    return _without_gradients(closed.jaxpr, found) if has_backward else found


def _without_gradients(jaxpr: Any, updates: Mapping[int, int]) -> dict[int, int]:
    """The updates without gradients, which have the types and paths of parameters, too: the backward pass leads to a gradient, and the
    parameter does so only through the backward pass. The gradient of an unused parameter is zeros, to which nothing leads.
    """
    arguments = {variable: 1 << place for place, variable in enumerate((*jaxpr.invars, *jaxpr.constvars))}
    """The arguments and constants that lead to each variable without a backward pass, as bits."""
    after_backward: set[Any] = set()
    for equation in jaxpr.eqns:
        read = [each for each in equation.invars if not isinstance(each, Literal)]
        is_backward = "transpose(" in stack_text(equation.source_info.name_stack)
        reached = 0 if is_backward else functools.reduce(operator.or_, (arguments.get(each, 0) for each in read), 0)
        arguments.update(dict.fromkeys(equation.outvars, reached))
        if is_backward or not after_backward.isdisjoint(read):
            after_backward.update(equation.outvars)
    return {
        result: argument
        for result, argument in updates.items()
        if not isinstance(given := jaxpr.outvars[result], Literal)
        and (reached := arguments.get(given, 0))
        and (given not in after_backward or reached >> argument & 1)
    }


def _updates_by_type(closed: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    arguments = [aval.str_short() for aval in closed.in_avals]
    for place, aval in enumerate(closed.out_avals):
        same = [each for each, kind in enumerate(arguments) if kind == aval.str_short() and each not in found.values()]
        if same and aval.ndim:
            found[place] = same[0]
    return found


def _paths(name: str) -> Iterator[str]:
    """The name without its first one or two parts: `result.0.params.kernel` has `0.params.kernel` and `params.kernel`."""
    parts = name.split(".")
    for first in (1, 2):
        if len(parts) > first:
            yield ".".join(parts[first:])


_OF_SHARED_GENERATORS: Final = frozenset({"rng_uniform"})
"""Primitives whose numbers follow from no key: XLA has one generator for them."""


def obstacle_of(function: Function) -> str:
    """Why a function cannot be run twice; empty if it can. Sets `callbacks` of the function."""
    closed = function.closed
    equations = [*equations_of(closed.jaxpr, "")]
    calls = [(around, each) for around, each in equations if each.primitive.name in WITH_RESULTS]
    callbacks = callbacks_of(calls)
    if callbacks is None:
        return (
            f"it calls the program on the host ({calls[0][1].primitive.name}), a result of such a call cannot be assigned to its place, "
            "and a second run would call the program again"
        )
    function.callbacks = callbacks
    if callbacks and (references_of(closed) or any(is_reference(aval) for aval in closed.in_avals)):
        return "it calls the program on the host and writes into arrays of the program (jax.Ref)"
    for _, each in equations:
        name = each.primitive.name
        if name in _OF_SHARED_GENERATORS:
            return f"{name} draws from a generator of the process, from which a second run would draw, too"
        kinds = {type(effect).__name__ for effect in each.effects if not _may_happen_again(effect)}
        if kinds and name not in HOST_CALLS and next(equations_in(each, ""), None) is None:
            return f"{name} has an effect ({', '.join(sorted(kinds))}) that a second run would repeat"
    return ""


def _may_happen_again(effect: Any) -> bool:
    """Whether the twin may repeat an effect: it concerns only the twin's own memory, or is invisible outside the function."""
    return not _SEEN_BY_NO_ONE.isdisjoint(each.__name__ for each in type(effect).__mro__)


def _primitives(jaxpr: Any) -> Iterator[str]:
    for _, equation in equations_of(jaxpr, ""):
        yield equation.primitive.name


@dataclass(frozen=True, slots=True)
class EagerOperator:
    """A function of JAX that the program runs as one operator."""

    kind: str
    kernel: str
    arguments: Mapping[str, Any]
    """The parameters and literals of its equation; the text and the wiring of each if there are several."""
    operands: Sequence[tuple[int, int]]
    """For each input that is not a literal of the function: its slot, and the argument of the call."""
    _with_numbers: dict[tuple[object, ...], Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, closed: Any, name: str) -> EagerOperator:
        flat = flattened(closed.jaxpr, JaxprPosition())
        step = _only_step(flat)
        if step is not None:
            kind = step.equation.primitive.name
            places = {number: place for place, number in enumerate(flat.arguments)}
            literals = {
                f"x{slot}": number_of(each.val) for slot, each in enumerate(step.reads) if isinstance(each, Literal)
            }
            operands = [(slot, places[each]) for slot, each in enumerate(step.reads) if isinstance(each, int)]
            return cls(kind, f"lax::{kind}", arguments_of(step.equation.params) | literals, operands)
        kind = name.strip("_")
        texts = [_text_of(step.equation) for step in flat.steps]
        body = _body_of(flat, closed)
        arguments = ({"equations": texts} if texts else {}) | ({} if body is None else {"body": body})
        return cls(kind, f"jnp::{kind}", arguments, [(place, place) for place in range(len(flat.arguments))])

    def given(self, values: Sequence[Any]) -> tuple[Mapping[str, Any], Sequence[tuple[int, int]]]:
        """The arguments of a call with these values, in which numbers are literals, and the operands that are arrays.

        The index recognises arguments by identity, so calls with the same numbers get the same object.
        """
        numbers = [(slot, values[place]) for slot, place in self.operands if _is_number(values[place])]
        if not numbers:
            return self.arguments, self.operands
        key = tuple((type(value), str(value), slot) for slot, value in numbers)
        if key not in self._with_numbers:
            if len(self._with_numbers) >= MOST_FUNCTIONS:
                self._with_numbers.clear()
            literals = {f"x{slot}": number_of(value) for slot, value in numbers}
            self._with_numbers[key] = {**self.arguments, **literals}
        slots = {slot for slot, _ in numbers}
        return self._with_numbers[key], [each for each in self.operands if each[0] not in slots]


def _only_step(flat: Flat) -> Step | None:
    """The only equation, if it makes the results; equations that change nothing do not count."""
    same = {step.writes[0]: step.reads[0] for step in flat.steps if _changes_nothing(step.equation)}
    steps = [step for step in flat.steps if not same.keys() & set(step.writes)]
    if len(steps) != 1 or list(steps[0].writes) != list(flat.results) or flat.constants or flat.own:
        return None
    reads = [same.get(each, each) if isinstance(each, int) else each for each in steps[0].reads]
    return replace(steps[0], reads=reads)


def _body_of(flat: Flat, closed: Any) -> dict[str, Any] | None:
    """The equations of a function with the values that they read and write by number, as JSON; None if it contains other bodies or large constants.

    The first numbers are the arguments of the function.
    """
    if any(
        next(equations_in(step.equation, ""), None) is not None
        # The function in a scatter is known from its name.
        and not step.equation.primitive.name.startswith("scatter")
        for step in flat.steps
    ):
        return None
    held = dict(zip(flat.constants, closed.consts, strict=True)) | dict(flat.own)
    if any(np.size(value) > _MOST_ELEMENTS or is_reference(jax.typeof(value)) for value in held.values()):
        return None
    order = {number: place for place, number in enumerate(flat.arguments)}

    def number(each: int) -> int:
        return order.setdefault(each, len(order))

    def read(atom: Any) -> Any:
        if isinstance(atom, int) and atom not in held:
            return number(atom)
        value = held[atom] if isinstance(atom, int) else atom.val
        elements = number_of(value) if not np.ndim(value) else [*map(number_of, np.ravel(value))]
        return {"value": elements, "dtype": str(jax.typeof(value).dtype.name), "shape": list(np.shape(value))}

    equations = [
        [
            step.equation.primitive.name,
            arguments_of(step.equation.params),
            [*map(read, step.reads)],
            [*map(number, step.writes)],
        ]
        for step in flat.steps
    ]
    results = [*map(read, flat.results)]
    types = [str(aval.dtype.name) for aval in closed.in_avals]
    return {"types": types, "equations": equations, "results": results}


def _changes_nothing(equation: Any) -> bool:
    """Whether an equation only gives a number of the program the type of the operand beside it, or an array the type that it has."""
    if equation.primitive.name != "convert_element_type":
        return False
    before, after = equation.invars[0].aval, equation.outvars[0].aval
    return bool(before.dtype == after.dtype or (before.weak_type and not before.shape))


def _is_number(value: Any) -> bool:
    """Whether an argument is a number that the program wrote, and not an array of JAX."""
    return isinstance(value, (bool, int, float, np.generic, np.ndarray)) and np.ndim(value) == 0


def _literals(equation: Any) -> dict[str, Any]:
    return {f"x{slot}": number_of(each.val) for slot, each in enumerate(equation.invars) if isinstance(each, Literal)}


def _text_of(equation: Any) -> str:
    """An equation with its literals and parameters: `max 0.0`, `integer_pow y=3`."""
    given = [str(value) for value in _literals(equation).values()]
    named = [f"{name}={value}" for name, value in sorted(arguments_of(equation.params).items())]
    return " ".join([equation.primitive.name, *given, *named])


def has_bodies(closed: Any) -> bool:
    """Whether it contains loops, branches or shards."""
    return bool({"scan", "while", "cond", "shard_map"}.intersection(_primitives(closed.jaxpr)))


# Finds the steps of a program.
#
# A step begins when the program calls a function that has already run in the current step. If some functions return updated arguments, only
# these count: evaluation between two updates belongs to the step.
#
# If the program calls no function of its own that is compiled, a step begins with the first differentiated operator after an update, which is
# an operator that is not differentiated after a backward pass.


class Steps:
    """Counts the steps of a program, and files each step when the next one begins. `began` is called after a step has begun."""

    def __init__(self, recorder: Recorder, *, first: int, manual: bool, stop_after_dump: bool) -> None:
        self.step = first
        self.began: Callable[[], None] = lambda: None
        self.executions: dict[int, Counter[str]] = {}
        """The number of executions of each operator in this step, by graph number."""
        self.order = itertools.count()
        self._recorder = recorder
        self._manual = manual
        self._stop_after_dump = stop_after_dump
        self._ran: set[tuple[object, ...]] = set()
        self._has_updates = False
        self._reached = ""
        """What the operators that ran one by one in this step have reached: `backward`, then `update`."""
        self._unfiled: int | None = None
        """A step that has ended but is not filed yet."""

    @property
    def is_wanted(self) -> bool:
        return self._recorder.wants(self.step)

    @property
    def next_is_wanted(self) -> bool:
        """Whether the next step is recorded. The call that begins it must then be intercepted before it runs."""
        return self._recorder.wants(self.step + 1)

    def counts(self, function: Function) -> bool:
        """Whether a call of the function may begin a step."""
        return not (self._manual or (self._has_updates and not function.returns_state))

    @property
    def are_over(self) -> bool:
        """Whether no further step is recorded."""
        return self._recorder.is_over or self._recorder.plan.steps.ends_by(self.step - 1)

    @property
    def are_of_operators(self) -> bool:
        """Whether operators that run one by one begin the steps: no compiled function has."""
        return not (self._manual or self._ran or self._has_updates)

    def runs(self, name_stack: str) -> None:
        """Note that the program is about to run an operator by itself. Raises like `calls`, and may begin a step in the same way."""
        if not self.are_of_operators:
            return
        if "transpose(" in name_stack:
            self._reached = "backward"
        elif "jvp(" not in name_stack:
            self._reached = "update" if self._reached else ""
        elif self._reached == "update":
            self._end()

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        self._manual = True
        self._end()
        self.file()

    def calls(self, function: Function) -> None:
        """Note that the program is about to call one of its functions. Raises DumpComplete if the program must end here.

        If the call begins a step, the caller must file the previous one (`file`) before it records anything else.
        """
        if not self.counts(function):
            return
        # The first function that updates its arguments: from here on only such functions count, so forget the others.
        if function.returns_state and not self._has_updates:
            self._has_updates = True
            self._ran.clear()
        if function.key in self._ran:
            self._end()
        self._ran.add(function.key)

    def file(self) -> None:
        """File a step that has ended. Callers do this while JAX computes, so that the program waits less."""
        if self._unfiled is not None:
            ended, self._unfiled = self._unfiled, None
            self._recorder.end_step(ended)

    def close(self) -> None:
        """File everything: the program or its capture has ended."""
        self.file()
        self._recorder.end_step(self.step)

    def _end(self) -> None:
        self.file()
        ended = self._unfiled = self.step
        self.step += 1
        self._ran.clear()
        self._reached = ""
        self.executions.clear()
        self.order = itertools.count()
        if self._stop_after_dump and self._recorder.plan.steps.ends_by(ended):
            self.file()
            raise DumpComplete
        self.began()
