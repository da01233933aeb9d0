"""Makes the instrumented copy of a traced function: what the runtime executes for it, and probes that hand over what its operators read and wrote.

The runtime optimises a function before it runs it: some operators are fused, rewritten, merged or computed beforehand, and that changes last bits.
So the copy is made of the optimised graph, and runs as it is: the same nodes, the values that they really had, computed once. What has no node of its
own is computed apart, by a node beside the others (`outcomes`). The copy is compared with what it was made of before it runs for the first time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.effects import functions_of
from opdump.adapters.tensorflow.functions.edits import MINE, definition_of
from opdump.adapters.tensorflow.functions.executed import ExecutedGraph, differing
from opdump.adapters.tensorflow.functions.function_parts import FunctionPart, parts_of
from opdump.adapters.tensorflow.functions.library import Library, hidden_callees, runs_functions
from opdump.adapters.tensorflow.functions.observed import BodyOperators, Observed
from opdump.adapters.tensorflow.functions.optimised import function_graphs, rewriting_off, with_argument
from opdump.adapters.tensorflow.functions.outcomes import Outcomes
from opdump.adapters.tensorflow.functions.probe import CurrentCall, Probe
from opdump.adapters.tensorflow.functions.shadows import add_shadowed
from opdump.adapters.tensorflow.operator_kinds import ModelSlots
from opdump.adapters.tensorflow.xla import is_compiled

_NUMBERS: Final = itertools.count()
_SUFFIX: Final = re.compile(r"_opdump_(\d+|look|shadow)")


@dataclass(frozen=True, slots=True)
class InstrumentedFunction:
    """An instrumented copy that the runtime knows."""

    name: str
    current: CurrentCall
    bodies: tuple[BodyOperators, ...]
    """By number; 0 is the function itself, which runs in each call."""
    definitions: tuple[str, ...]
    """Names under which the copies, and what they run, stand in the runtime."""
    probes: tuple[Callable[..., Any], ...]
    """Kept alive: the runtime knows them by a token alone."""
    is_executed_graph: bool
    """It is what the runtime executes, has an argument more, and is to stay as it is; else it is made of the definition (`shadows`)."""
    hidden: tuple[str, ...] = ()
    """Functions that its operators have run elsewhere: bodies of loops over data sets."""
    listed: set[tuple[int, bool]] = field(default_factory=set)
    """Numbers of bodies whose operators without data were listed: of one that ran, of one that did not."""


def without_suffix(text: str) -> str:
    """A message of the runtime with the names of the functions and operators in place of those of the copies."""
    return _SUFFIX.sub("", text)


def instrument(name: str, context: Any, inputs: Sequence[Any], capture: Capture, model: Model) -> InstrumentedFunction:
    """Makes the copy of a function that is called with these inputs, and has the runtime know it."""
    library: Library = context.get_function_def
    parts = parts_of(name, library, capture.stacks)
    order = [part.names[node.node.name] for part in parts for node in part.body.nodes]
    selection = capture.selection(capture.filter_of(model), order)
    current = CurrentCall()
    hidden = tuple(_note_hidden(parts, capture))
    try:
        made = _of_executed_graph(name, context, inputs, parts, selection, capture, current)
    except Exception as error:  # noqa: BLE001  a defect is not to end the program, and is told
        capture.note(f"{name}: what is executed could not be read, so its definition was taken ({error!r})")
        made = None
    is_executed_graph = made is not None
    if made is None:
        made = add_shadowed(parts, library, context.add_function_def, capture, selection, current)
    capture.recorder.matched_kernels |= selection.matched_kernels
    return InstrumentedFunction(made[0], current, *made[1:], is_executed_graph, hidden)


def _of_executed_graph(
    name: str,
    context: Any,
    inputs: Sequence[Any],
    parts: Sequence[FunctionPart],
    selection: ModelSlots,
    capture: Capture,
    current: CurrentCall,
) -> tuple[str, tuple[BodyOperators, ...], tuple[str, ...], tuple[Probe, ...]] | None:
    """None where the executed graph is not had, holds calls of functions, or does not stay what it is with probes in it."""
    library: Library = context.get_function_def
    look = with_argument(library(name), f"{name}_opdump_look")
    context.add_function_def(look)
    try:
        graphs = function_graphs(context, look, inputs)
    finally:
        context.remove_function(look.signature.name)
    if graphs is None:
        return None
    # Another graph than that of the only device is optimised for each device once more.
    base = graphs.partition_graphs[0] if len(graphs.partition_graphs) == 1 else graphs.post_optimization_graph
    if any(runs_functions(node) and not is_compiled(node) for node in base.node):
        return None
    added = [each for each in base.library.function if not context.has_function(each.signature.name)]
    for function in added:
        context.add_function_def(function)
    graph = ExecutedGraph(base, library)
    observed = Observed(capture, selection, parts, graph, Outcomes(parts, graph, library), current)
    observed.build()
    definition = definition_of(graph, with_argument(library(name), f"{name}_opdump_{next(_NUMBERS)}"))
    context.add_function_def(definition)
    names = (str(definition.signature.name), *(str(each.signature.name) for each in added))
    with rewriting_off(context):
        own = function_graphs(context, definition, inputs)
    if own is None or differing(graphs.partition_graphs, own.partition_graphs, MINE):
        for each in names:
            context.remove_function(each)
        return None
    return names[0], tuple(observed.bodies()), names, tuple(observed.probes)


def _note_hidden(parts: Sequence[FunctionPart], capture: Capture) -> Iterator[str]:
    """The functions that nobody sees, by name."""
    for part in parts:
        for node in part.body.nodes:
            if node.node.name in part.body.needed and hidden_callees(node.node):
                name = part.names[node.node.name]
                capture.note(
                    f"the functions that {name} ({node.node.op}) runs are not shown: they run outside of the graph"
                )
                yield from functions_of(node.node)
