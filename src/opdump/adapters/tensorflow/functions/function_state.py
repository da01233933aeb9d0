"""Finds what belongs to a fetch set and not to its session: random numbers within functions, callbacks that are folded.

An operator such as RandomUniform counts what it gave. In the graph of a session it is one and the same whatever the session fetches; in
the body of a function (`tf.function`, the branches and loops of control flow 2, `Defun`) each set of fetches has its own, which starts
anew. A callback of Python that is declared to have no state, and depends on nothing that is given, runs once for each set of fetches, when the
runtime folds constants. A fetch set of either kind has to be extended in all its steps or in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tensorflow.python.framework import op_def_registry

from opdump.adapters.tensorflow.effects import definitions_of, folds_callbacks
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph


def belongs_to_fetches(subgraph: Subgraph) -> bool:
    """Whether there is something among the operators that each set of fetches has for itself."""
    return has_state_in_functions(subgraph) or _folds_callbacks(subgraph)


def _folds_callbacks(subgraph: Subgraph) -> bool:
    if not subgraph.with_effects:
        return False
    definitions = definitions_of(subgraph.operators[0].operation.graph)
    return folds_callbacks((op.operation.node_def for op in subgraph.operators), definitions.__getitem__)


def has_state_in_functions(subgraph: Subgraph) -> bool:
    """Whether a function that the operators call, or one that it calls, draws random numbers from a seed."""
    called = [name for op in subgraph.operators for name in _called(op.operation.node_def)]
    if not called:
        return False
    return _draws(called, definitions_of(subgraph.operators[0].operation.graph))


def _draws(called: Iterable[str], bodies: Mapping[str, Any]) -> bool:
    waiting, met = list(called), set()
    while waiting:
        name = waiting.pop()
        if name in met or name not in bodies:
            continue
        met.add(name)
        for node in bodies[name].node_def:
            if _is_seeded(node):
                return True
            waiting += _called(node)
    return False


def _called(node: Any) -> list[str]:
    """The functions that an operator names. Those of data sets run in an iterator, which the session shares."""
    if node.op.endswith(("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")):
        return []
    names = [value.func.name for value in node.attr.values() if value.func.name]
    names += [function.name for value in node.attr.values() for function in value.list.func]
    return [*names, node.op] if op_def_registry.get(node.op) is None else names


def _is_seeded(node: Any) -> bool:
    """Whether it goes on with a sequence. Without seeds the numbers differ from run to run anyway."""
    definition = op_def_registry.get(node.op)
    return (
        definition is not None
        and definition.is_stateful
        and "Dataset" not in node.op
        and any(node.attr[name].i for name in ("seed", "seed2") if name in node.attr)
    )
