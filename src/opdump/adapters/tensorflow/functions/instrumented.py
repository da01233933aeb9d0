"""Makes the instrumented copy of a traced function: the graph that the runtime executes for it, with probes that pass on inputs and outputs.

The runtime optimises a function before it runs it: operators are fused, rewritten, merged or precomputed, which changes last bits. The copy
is therefore made of the optimised graph, and runs unchanged: the same nodes with their actual values, computed once. Operators without a node
are computed apart, by an additional node. If the runtime keeps a call as a call (`_noinline`, LSTM and GRU of Keras 2), it optimises the
called function separately, so that gets a copy, too. Each copy is compared with its original before it first runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.effects import Library, functions_of
from opdump.adapters.tensorflow.functions.edits import CALL_ATTRIBUTES, MINE, definition_of, with_fixed
from opdump.adapters.tensorflow.functions.observed import BodyOperators, KeptCall, Naming, Observed
from opdump.adapters.tensorflow.functions.optimised import (
    function_graphs,
    standing_for,
    with_argument,
    without_rewriting,
)
from opdump.adapters.tensorflow.functions.probe import CurrentCall
from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph
from opdump.adapters.tensorflow.graphs.library import Definition, hidden_callees
from opdump.adapters.tensorflow.graphs.program import Program, function_program, shown_names

_NUMBERS: Final = itertools.count()
_ADDED: Final = re.compile(rf"\b{MINE}\w+?_\d+\b")
_SUFFIX: Final = re.compile(r"_opdump_(\d+|look)")


def without_suffix(text: str) -> str:
    """A message of the runtime with the names of the functions and operators instead of those of the copies."""
    return _SUFFIX.sub("", text)


class InstrumentedFunction:
    """The copy of a function for calls with these inputs, as registered in the runtime, and the copies of the functions that it calls.

    If no copy could be made, it is the function itself.
    """

    def __init__(self, name: str, context: Any, inputs: Sequence[Any], capture: Capture, model: Model) -> None:
        self.current = CurrentCall()
        self.bodies: list[BodyOperators] = []
        """By number; 0 is the function itself, which runs in each call."""
        self.definitions: list[str] = []
        """Names of the copies, and of the functions that they run, in the runtime."""
        self.hidden: list[str] = []
        """Functions that its operators run elsewhere: bodies of loops over data sets."""
        self.listed: set[tuple[int, bool]] = set()
        """Numbers of bodies whose skipped operators are listed: for bodies that ran, and for bodies that did not."""
        self._programs: dict[str, str] = {}
        """Nodes of copies that recompute an operator -> the program's names."""
        self._probes: list[Callable[..., Any]] = []
        """Kept alive, because the runtime only has a token of each."""
        self._context = context
        self._library: Library = context.get_function_def
        self._capture = capture
        self._model = model
        self._task_ids = itertools.count()
        program = function_program(name, self._library, capture.stacks)
        names = shown_names(program)
        self._selection = capture.selection(capture.filter_of(model), list(names.values()))
        for op in program.operators:
            if op.is_needed and hidden_callees(op.node):
                capture.note(
                    f"the functions that {names[op.name]} ({op.node.op}) runs are not shown: they run outside of the graph"
                )
                self.hidden += functions_of(op.node)
        config = context.function_call_options.config_proto_serialized
        made = self._make(self._library(name), program, Naming(names), inputs, config)
        capture.recorder.matched_kernels |= self._selection.matched_kernels
        self.name, self.is_copy = made or name, made is not None
        if made is None:
            capture.note(
                f"{name} is not shown: the graph that TensorFlow executes for it is not available, or would change if it was observed"
            )
            self.bodies.append(self._unseen(program, names))

    def as_the_programs(self, text: str) -> str:
        """A message of the runtime with the program's names instead of those of copies and of recomputed operators."""
        return _ADDED.sub(lambda found: self._programs.get(found[0], found[0]), without_suffix(text))

    def _make(
        self,
        definition: Definition,
        program: Program,
        naming: Naming,
        inputs: Sequence[Any],
        config: bytes,
        *,
        is_inner: bool = False,
    ) -> str | None:
        """The name of the copy of a function; unless another function calls it, the copy has an additional argument.

        None if the executed graph is not available, or would change with probes in it.
        """
        begin, number = len(self.definitions), len(self.bodies)
        graphs = self._executed(definition, inputs, config, is_inner=is_inner)
        if graphs is None:
            return None
        # With several devices, the unpartitioned graph is used, which the runtime optimises again for each device.
        base = graphs.partition_graphs[0] if len(graphs.partition_graphs) == 1 else graphs.post_optimization_graph
        for function in base.library.function:
            if not self._context.has_function(function.signature.name):
                self._add(function)
        self.bodies += [_NO_OPERATORS] * len(program.bodies)
        observed = Observed(
            self._capture,
            self._selection,
            self._model,
            program,
            ExecutedGraph([base]),
            self._library,
            self.current,
            self._task_ids,
        )
        copies = {call.node: self._copy_of_call(call, naming) for call in observed.kept_calls()}
        calls = {node: copy for node, copy in copies.items() if copy is not None}
        observed.build(naming, number, calls)
        self._programs |= observed.programs
        self.bodies[number : number + len(program.bodies)] = observed.bodies()
        copy = definition_of(observed.graph, definition, f"{definition.signature.name}_opdump_{next(_NUMBERS)}")
        with_one_more = with_argument(copy, f"{copy.signature.name}_look" if is_inner else copy.signature.name)
        self._add(with_one_more)
        own = function_graphs(self._context, with_one_more, inputs, without_rewriting(config))
        if own is None or not _is_same(graphs, own, calls):
            for each in self.definitions[begin:]:
                self._context.remove_function(each)
            del self.definitions[begin:], self.bodies[number:]
            return None
        if is_inner:
            copy.attr["_noinline"].b = True  # the call remains a call
            self._add(copy)
        self._probes += observed.probes
        return str(copy.signature.name)

    def _unseen(self, program: Program, names: Mapping[str, str]) -> BodyOperators:
        """All operators of a function that is not observed."""
        operators = []
        for op in program.operators:
            skip = self._selection.skip_of(op.op_type, names[op.name]) or "not observed"
            operators.append(op.named(next(self._task_ids), name=names[op.name], skip=skip))
        return BodyOperators.of(operators, 0)

    def _executed(self, definition: Definition, inputs: Sequence[Any], config: bytes, *, is_inner: bool) -> Any | None:
        look = with_argument(definition, f"{definition.signature.name}_opdump_look")
        self._context.add_function_def(look)
        try:
            return function_graphs(self._context, look, inputs, config, is_programs=not is_inner)
        finally:
            self._context.remove_function(look.signature.name)

    def _copy_of_call(self, call: KeptCall, naming: Naming) -> str | None:
        """The copy of a function whose call the runtime keeps."""
        name = call.operator.node.attr["f"].func.name
        program = function_program(name, self._library, self._capture.stacks, call.operator.stack, call.outputs)
        definition = self._library(name)
        naming = naming.within(call.operator, program, [each.name for each in definition.signature.input_arg])
        definition = with_fixed(definition, call.constants, call.outputs)
        inputs = [
            standing_for(self._context, each.type, device)
            for each, device in zip(definition.signature.input_arg, call.devices, strict=True)
        ]
        return self._make(definition, program, naming, inputs, call.config, is_inner=True)

    def _add(self, definition: Definition) -> None:
        self._context.add_function_def(definition)
        self.definitions.append(str(definition.signature.name))


def _is_same(plain: Any, own: Any, calls: Iterable[str]) -> bool:
    """Whether the runtime executes the same graph for a copy as for the function; `calls` are nodes that call copies."""
    nodes = {node.name: node for graph in plain.partition_graphs for node in graph.node}
    for graph in own.partition_graphs:
        for node in graph.node:
            if node.name in calls and node.name in nodes:
                for attribute in CALL_ATTRIBUTES:
                    node.attr[attribute].CopyFrom(nodes[node.name].attr[attribute])
    executed = ExecutedGraph(plain.partition_graphs)
    return not executed.differing(ExecutedGraph(own.partition_graphs, added=MINE))


_NO_OPERATORS: Final = BodyOperators.of((), 0)
