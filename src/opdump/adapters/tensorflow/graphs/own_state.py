"""Finds the state that belongs to a graph and starts anew in a copy: random numbers within functions, callbacks that are folded.

An operator such as RandomUniform counts its results. In the graph of a session there is one counter, whatever the session fetches. In
the body of a function (`tf.function`, the branches and loops of control flow 2, `Defun`), each set of fetches, and each copy of the function,
has its own. A Python callback that is declared as stateless and depends on no input runs once for each of them, when the
runtime folds constants. Such a graph is therefore instrumented in all its steps or in none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.library import LOOPS
from opdump.adapters.tensorflow.graphs.program import Program
from opdump.adapters.tensorflow.operator_kinds import is_stateful

_FOLDED: Final = "PyFuncStateless"
_SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""The runtime may know their results before it knows their inputs."""


def draws_seeded_numbers(nodes: Iterable[Any]) -> bool:
    """Whether one of these nodes continues a sequence of random numbers. Without seeds the numbers differ from run to run anyway."""
    return any(
        is_stateful(node.op) and any(name in node.attr and node.attr[name].i for name in ("seed", "seed2"))
        for node in nodes
    )


def may_fold_callbacks(nodes: Iterable[Any]) -> bool:
    """Whether the runtime runs a callback among these nodes itself because nothing that it depends on is an input."""
    return any(node.op == _FOLDED for node in nodes)


def folds_callbacks(program: Program) -> bool:
    """Whether the runtime itself runs a callback of the program, once for each copy of a graph."""
    same = dict(program.behind)
    fixed: set[Key] = set()
    for op in program.operators:
        reads = []
        for slot in op.inputs:
            key = slot.key
            while key in same:
                key = same[key]
            reads.append(key)
        if op.op_type in LOOPS:  # the initial value of a loop may also be its next one
            for label in ("cond", "body"):
                same.update(zip(program.arguments.get((op.name, label), ()), reads, strict=False))
        depends = is_stateful(op.op_type) or op.op_type.startswith("Placeholder") or not fixed.issuperset(reads)
        if op.op_type in _SHAPES or not depends:
            fixed.update(slot.key for slot in op.outputs)
            if op.op_type == _FOLDED:
                return True
    return False
