"""What is known of the functions that a program compiles: whose they are, what they are given, which of their results update arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jax.extend.core import Literal

from opdump.adapters.jax.arguments import KnownFacts
from opdump.adapters.jax.blocks import Blocks, Prepared, Reads
from opdump.adapters.jax.flat import INLINED, equations_in, equations_of, inner_jaxpr, references_of
from opdump.adapters.jax.frames import file_of_function, is_of_jax
from opdump.adapters.jax.host import Facts
from opdump.adapters.jax.host_calls import HOST_CALLS, WITH_RESULTS, callbacks_of
from opdump.adapters.jax.names import arguments_of, stack_text, value_name
from opdump.adapters.jax.schedule import Level
from opdump.adapters.jax.twin import Twin
from opdump.adapters.jax.values import is_reference, number_of
from opdump.records import Frame

_SEEN_BY_NO_ONE: Final = frozenset(
    {"RefEffect", "InternalMutableArrayEffect", "NamedAxisEffect", "NoDCEEffect", "ShapeAssertionEffect", "ErrorEffect"}
)
"""Effects by the names of their classes. Whatever else a JAX has, or a package adds, happens once."""
MOST_FUNCTIONS: Final = 512
"""So many are known at once; a program whose shapes change all the time makes a new one for each."""
EAGER_GRAPH: Final = 0
"""The number of the graph of operators that the program runs one by one."""


@dataclass(slots=True)
class Function:
    """One compiled function: a jaxpr, by the name that the program gives it."""

    closed: Any
    name: str
    donated: Sequence[bool]
    graph_id: int
    argument_names: tuple[str, ...]
    result_names: tuple[str, ...]
    is_programs: bool
    """Whether the program, or a library on JAX, has written it: else it is an operator that runs by itself."""
    has_backward: bool
    updates: dict[int, int]
    """Results that are arguments after an update: the numbers of both."""
    key: tuple[object, ...]
    """The same for all jaxprs of a function."""
    twin: Twin | None = None
    obstacle: str = ""
    """Why it has no twin."""
    calls_host: bool = False
    """Whether it calls functions of the program on the host."""
    callbacks: Sequence[Any] = ()
    """Those of them that give it results, which its twin is given again."""
    is_told: bool = False
    """Its graph, and how far its twin is from it, are in the dump."""
    blocks: Blocks | None = None
    """The operators of the twin, with what became of them in the compiled program."""
    argument_facts: KnownFacts = field(default_factory=KnownFacts)
    result_facts: KnownFacts = field(default_factory=KnownFacts)
    reads: tuple[Sequence[Facts], Level, Reads] | None = None
    """What its operators read of its arguments, with the facts and the level that this holds for."""
    as_operator: tuple[Any, Mapping[str, Any]] | None = None
    """Of one that is an operator: its only equation, if it has one, and the arguments; one object, by which an index knows them again."""
    calls: dict[Sequence[Frame], Prepared] = field(default_factory=dict)
    """Its calls as operators, by the lines of the program that make them."""
    shown: dict[int, Level] = field(default_factory=dict)
    """Levels whose operators are in the graph of the dump, by identity."""

    @property
    def returns_state(self) -> bool:
        """Whether it gives back what it was given, updated: a step of a training."""
        return any(self.donated) or bool(self.updates)


class Functions:
    """The functions of a program by their jaxprs."""

    def __init__(self) -> None:
        self._known: dict[int, Function] = {}
        self._graphs: dict[tuple[object, ...], int] = {}
        self._named: Counter[str] = Counter()

    def of(self, closed: Any, name: str, donated: Sequence[bool]) -> Function:
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
        # JAX gives the parts that it makes of a function, to differentiate it, the same name.
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
    """Names of arguments or results, each one of its own."""
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
    """Which results have the type, the shape and, below the root, the path of an argument.

    A single array has no path: it counts where the function differentiates something.
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
    if not found and has_backward:
        for place, aval in enumerate(closed.out_avals):
            same = [
                each
                for each, other in enumerate(closed.in_avals)
                if other.str_short() == aval.str_short() and aval.ndim
            ]
            free = [each for each in same if each not in found.values()]
            if free:
                found[place] = free[0]
    return found


def _paths(name: str) -> Iterator[str]:
    """What follows the first part of a name, and the second: `result.0.params.kernel` has `0.params.kernel` and `params.kernel`."""
    parts = name.split(".")
    for first in (1, 2):
        if len(parts) > first:
            yield ".".join(parts[first:])


def obstacle_of(function: Function) -> str:
    """Why a function cannot be run twice; empty where it can. Sets what is known of its calls on the host."""
    closed = function.closed
    equations = [*equations_of(closed.jaxpr, "")]
    calls = [(around, each) for around, each in equations if each.primitive.name in WITH_RESULTS]
    callbacks = callbacks_of(calls)
    if callbacks is None:
        return (
            f"it calls the program on the host ({calls[0][1].primitive.name}) in a way in which nobody knows which result belongs where, "
            "and a second run would call it again"
        )
    function.callbacks = callbacks
    if callbacks and (references_of(closed) or any(is_reference(aval) for aval in closed.in_avals)):
        return "it calls the program on the host, and writes into arrays of the program (jax.Ref)"
    for _, each in equations:
        name = each.primitive.name
        kinds = {type(effect).__name__ for effect in each.effects if not _may_happen_again(effect)}
        if kinds and name not in HOST_CALLS and next(equations_in(each, ""), None) is None:
            return f"{name} has an effect ({', '.join(sorted(kinds))}) that a second run would have once more"
    return ""


def _may_happen_again(effect: Any) -> bool:
    """Whether a twin may have an effect, too: one on its own memory, or one that nothing outside of a function sees."""
    return not _SEEN_BY_NO_ONE.isdisjoint(each.__name__ for each in type(effect).__mro__)


def _primitives(jaxpr: Any) -> Iterator[str]:
    for _, equation in equations_of(jaxpr, ""):
        yield equation.primitive.name


def single_operator(closed: Any) -> Any:
    """The one equation of a function that is an operator; None where it has more, or one with a body."""
    jaxpr = closed.jaxpr
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name in INLINED:
        inner = inner_jaxpr(jaxpr.eqns[0])
        jaxpr = getattr(inner, "jaxpr", inner)
    return jaxpr.eqns[0] if len(jaxpr.eqns) == 1 else None


def arguments_of_call(closed: Any) -> dict[str, Any]:
    """What an operator of JAX does beside what it is given: the parameters and the literals of its equation, or of each where it has several."""
    equation = single_operator(closed)
    if equation is not None:
        return arguments_of(equation.params) | _literals(equation)
    texts = [_text_of(each) for _, each in equations_of(closed.jaxpr, "") if each.primitive.name not in INLINED]
    return {"equations": texts} if texts else {}


def _literals(equation: Any) -> dict[str, Any]:
    return {f"x{slot}": number_of(each.val) for slot, each in enumerate(equation.invars) if isinstance(each, Literal)}


def _text_of(equation: Any) -> str:
    """An equation with all that makes it compute something else: `max 0.0`, `integer_pow y=3`."""
    given = [str(value) for value in _literals(equation).values()]
    named = [f"{name}={value}" for name, value in sorted(arguments_of(equation.params).items())]
    return " ".join([equation.primitive.name, *given, *named])


def has_bodies(closed: Any) -> bool:
    """Whether loops, branches or shards are in it."""
    return bool({"scan", "while", "cond", "shard_map"}.intersection(_primitives(closed.jaxpr)))
