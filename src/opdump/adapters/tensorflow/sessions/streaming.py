"""Hands tensors over one by one while a session runs, so that a large network's need not be in memory together.

Each operator gets a reader beside it in the graph: a Python function of its inputs and outputs that nothing reads. The readers of a
signature are made once and run on its dumped steps alone. What cannot be read so (reference variables, branches, loops) is watched.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from opdump.adapters.graph_runtime import GraphRun
from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.sessions.signatures import ChosenOperator, DumpedSignature, emit_execution
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph
from opdump.adapters.tensorflow.sessions.watches import ObservedValue
from opdump.adapters.tensorflow.stacks import Stack


class SignatureStream:
    """The readers of a signature; `targets` are run with its fetches.

    `readable` names the tensors that can be looked at without another answer.
    """

    def __init__(
        self, capture: Capture, signature: DumpedSignature, subgraph: Subgraph, graph: Any, readable: Collection[str]
    ) -> None:
        self._capture = capture
        self._model = signature.model
        self._run: GraphRun | None = None
        """The run of the step that runs; None where it is not dumped."""
        self._runs = threading.Lock()
        streamed = {
            chosen.op.name
            for chosen in signature.operators
            if not chosen.skip
            and (chosen.inputs or chosen.outputs)
            and all(
                slot.tensor.name in readable and slot.tensor.dtype.base_dtype != tf.string
                for slot in (*chosen.inputs, *chosen.outputs)
            )
        }
        with unfinalized(graph), graph.as_default(), tf.control_dependencies(None), tf.name_scope("opdump"):
            self.targets = tuple(self._reader(chosen) for chosen in signature.operators if chosen.op.name in streamed)
        self.rest = signature.without(streamed, subgraph)
        """What is fetched and watched all the same."""

    @contextmanager
    def of_step(self, step: int | None, run_at: Stack) -> Iterator[None]:
        """A run while the block lasts, of a step, or of one that is not dumped. There is one at a time: the readers emit for it."""
        with self._runs:
            self._run = None if step is None else self._capture.run(self._model, step, called_at=run_at)
            try:
                yield
            finally:
                self._run = None

    def _reader(self, chosen: ChosenOperator) -> Any:
        tensors = [slot.tensor for slot in (*chosen.inputs, *chosen.outputs)]
        with tf.device("/cpu:0"):
            token = tf.numpy_function(partial(self._receive, chosen), tensors, tf.int32)
        return token.op

    def _receive(self, chosen: ChosenOperator, *arrays: Any) -> Any:
        run = self._run
        if run is None or run.is_over:
            return np.int32(0)
        seen = [ObservedValue(np.asarray(array), stays=False) for array in arrays]
        inputs, outputs = seen[: len(chosen.inputs)], seen[len(chosen.inputs) :]
        with self._capture.lock:
            emit_execution(run, chosen, inputs, outputs, {})
        return np.int32(0)


@contextmanager
def unfinalized(graph: Any) -> Iterator[None]:
    """Allows changes of a graph while the block runs."""
    was_final = graph.finalized
    if was_final:
        graph._unsafe_unfinalize()
    try:
        yield
    finally:
        if was_final:
            graph.finalize()
