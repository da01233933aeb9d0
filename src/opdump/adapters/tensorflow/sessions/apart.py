"""Computes operators apart that the runtime did not compute separately, from values seen in the run: fused ones, and summands that are not observed.

They are in a graph of their own without rewriting, whose inputs are the seen tensors. Operators with effects are excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import rewriter_config_pb2

from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.program import ProgramOperator
from opdump.adapters.tensorflow.sessions.rehearsal import OwnSession
from opdump.adapters.tensorflow.sessions.watches import ObservedValue

Values = Mapping[Key, Sequence[ObservedValue]]
"""Tensor -> its values, one for each time that it was made."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Operators that read each other; their inputs determine how often they ran."""

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]


class ApartGraph:
    """Operators that are computed from seen values; the results of those in `wanted` are returned.

    `resolved` maps a tensor to its equal one; `library` has the functions that they run; `config` is the session's.
    """

    def __init__(
        self,
        operators: Sequence[ProgramOperator],
        wanted: Collection[str],
        resolved: Callable[[Key], Key],
        library: Any,
        config: Any | None,
    ) -> None:
        self._wanted = wanted
        self._numbers = {op.name: number for number, op in enumerate(operators)}
        self._resolved = resolved
        self._inputs: dict[Key, str] = {}
        self._keys = {slot.key for op in operators for slot in op.outputs}
        graph_def = graph_pb2.GraphDef()
        graph_def.library.CopyFrom(library)
        for op in operators:
            self._add(op, graph_def)
        dtypes = {resolved(slot.key): slot.dtype for op in operators for slot in op.inputs}
        for key, name in self._inputs.items():
            node = graph_def.node.add()
            node.name, node.op = name, "Placeholder"
            node.attr["dtype"].type = dtypes[key]
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(graph_def, name="")
        self._session = OwnSession(graph=self._graph, config=_plain_config(config))
        self._parts = self._divided(operators)

    def computed(self, values: Values) -> dict[Key, list[ObservedValue]]:
        """The results of the operators for the seen values: one for each time that all of their inputs were made."""
        found: dict[Key, list[ObservedValue]] = {}
        once: list[_Part] = []
        for part in self._parts:
            seen = [values.get(key, ()) for key in part.inputs]
            counts = {len(each) for each in seen}
            if counts <= {1}:
                once.append(part)
            elif 0 not in counts:
                self._several(part, seen, max(counts), found)
        if once:
            self._run(once, lambda key: values[key][0], found)
        return found

    def _several(
        self, part: _Part, seen: Sequence[Sequence[ObservedValue]], count: int, found: dict[Key, list[ObservedValue]]
    ) -> None:
        moving = [len(each) for each in seen if len(each) > 1]
        count = min(moving) if moving else count  # the initial value of a loop is additional
        for number in range(count):
            given = {
                key: each[0] if len(each) == 1 else each[number] for key, each in zip(part.inputs, seen, strict=True)
            }
            self._run([part], given.__getitem__, found)

    def _run(
        self, parts: Iterable[_Part], value: Callable[[Key], ObservedValue], found: dict[Key, list[ObservedValue]]
    ) -> None:
        feeds: dict[str, Any] = {}
        fetches: list[Key] = []
        moment = 0
        for part in parts:
            for key in part.inputs:
                given = value(key)
                moment = max(moment, given.moment)
                feeds[f"{self._inputs[key]}:0"] = given.array
            fetches += part.outputs
        results = self._session.run([self._name(key) for key in fetches], feeds)
        for key, result in zip(fetches, results, strict=True):
            found.setdefault(key, []).append(ObservedValue(np.asarray(result), moment))

    def _name(self, key: Key) -> str:
        name, _, slot = key.rpartition(":")
        return f"n{self._numbers[name]}:{slot}"

    def _add(self, op: ProgramOperator, graph_def: Any) -> None:
        node = graph_def.node.add()
        node.CopyFrom(op.node)
        node.name, node.device = f"n{self._numbers[op.name]}", ""
        node.ClearField("experimental_debug_info")
        for attribute in [name for name in node.attr if name.startswith("_")]:
            del node.attr[attribute]
        del node.input[:]
        for slot in op.inputs:
            key = self._resolved(slot.key)
            if key in self._keys:
                node.input.append(self._name(key))
            else:
                node.input.append(self._inputs.setdefault(key, f"given{len(self._inputs)}"))

    def _divided(self, operators: Sequence[ProgramOperator]) -> list[_Part]:
        """The parts that are connected only through constants and inputs."""
        part_of: dict[str, dict[str, ProgramOperator]] = {}
        for op in operators:
            joined = {op.name: op}
            for slot in op.inputs:
                maker = self._resolved(slot.key).rpartition(":")[0]
                if maker in part_of and part_of[maker][maker].inputs:
                    joined.update(part_of[maker])
            part_of.update(dict.fromkeys(joined, joined))
        parts = {id(part): part for part in part_of.values()}.values()
        return [made for part in parts if (made := self._part(part.values())).outputs]

    def _part(self, operators: Iterable[ProgramOperator]) -> _Part:
        read = [self._resolved(slot.key) for op in operators for slot in op.inputs]
        inputs = tuple(dict.fromkeys(key for key in read if key not in self._keys))
        wanted = [op for op in operators if op.name in self._wanted]
        return _Part(inputs, tuple(slot.key for op in wanted for slot in op.outputs if not slot.is_handle))


def _plain_config(config: Any | None) -> Any:
    """The session's threads, and a graph that is not rewritten."""
    made = tf.compat.v1.ConfigProto()
    if config is not None:
        made.intra_op_parallelism_threads = config.intra_op_parallelism_threads
        made.inter_op_parallelism_threads = config.inter_op_parallelism_threads
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    made.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    made.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    return made
