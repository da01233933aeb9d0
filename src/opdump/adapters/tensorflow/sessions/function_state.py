"""Finds what belongs to a fetch set and not to its session: random numbers within functions, callbacks that are folded.

An operator such as RandomUniform counts what it gave. In the graph of a session it is one and the same whatever the session fetches; in
the body of a function (`tf.function`, the branches and loops of control flow 2, `Defun`) each set of fetches has its own, which starts
anew. A callback of Python that is declared to have no state, and depends on nothing that is given, runs once for each set of fetches, when the
runtime folds constants. A fetch set of either kind has to be extended in all its steps or in none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opdump.adapters.tensorflow.effects import folds_callbacks, functions_run_by
from opdump.adapters.tensorflow.graphs.library import is_seeded
from opdump.adapters.tensorflow.graphs.walks import reachable
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph


def belongs_to_fetches(subgraph: Subgraph) -> bool:
    """Whether there is something among the operators that each set of fetches has for itself."""
    if not subgraph.with_effects:
        return False
    definitions = subgraph.definitions()
    nodes = [op.node_def for op in subgraph.operations]

    def body(name: str) -> Iterable[Any]:
        return definitions[name].node_def if name in definitions else ()

    called = reachable(_called(nodes), lambda name: _called(body(name)))
    draws = any(is_seeded(node) for name in called for node in body(name))
    return draws or folds_callbacks(nodes, definitions.__getitem__)


def _called(nodes: Iterable[Any]) -> list[str]:
    """The functions that operators run. Those of data sets run in an iterator, which the session shares."""
    of_datasets = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")
    return [name for node in nodes if not node.op.endswith(of_datasets) for name in functions_run_by(node)]
