"""Finds the computational graph: the training graph, among those that initialise, save and restore.

See docs/tensorflow-graph.md#the-rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from opdump.layouts.graph_files.ge.graph import GeGraph

COMPUTE_GRAPH: Final = "_opdump_compute_graph"
"""Attribute of the graph of a training program without an iterator, in which the document's rule finds nothing."""

_OF_THE_DOCUMENT: Final = ("IteratorV2", "Iterator", "GetNext")
_OF_TENSORFLOW: Final = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "OneShotIterator")
_READERS: Final = ("GetNext", "IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
_STARTERS: Final = ("MakeIterator", "IteratorFromStringHandle", "IteratorFromStringHandleV2")
_UPDATE: Final = re.compile(r"Apply[A-Z]|AssignSub")  # the latter: optimizers of Keras 3


def update_of(graphs: Sequence[GeGraph]) -> str:
    """The type of an operator of the graphs that updates a variable, like those of an optimizer; empty if there is none.

    A training graph has one; an evaluation graph, which also reads data, has none.
    """
    types = (operator.op_type for graph in graphs for operator in graph.operators)
    return next((op_type for op_type in types if _UPDATE.search(op_type)), "")


def is_computational(graphs: Sequence[GeGraph]) -> str | None:
    """Why the graphs of a file are computational: the operator type that the rule finds in them, or the attribute with which
    opdump marks them; None if they are not.

    A graph that starts an iterator without reading it also has an IteratorV2, and only initialises.
    """
    types = {operator.op_type for graph in graphs for operator in graph.operators}
    if not (types.intersection(_STARTERS) and not types.intersection(_READERS)):
        for op_type in (*_OF_THE_DOCUMENT, *_OF_TENSORFLOW):
            if op_type in types:
                return op_type
    is_marked = any(graph.attributes.get(COMPUTE_GRAPH) is True for graph in graphs)
    return COMPUTE_GRAPH if is_marked else None
