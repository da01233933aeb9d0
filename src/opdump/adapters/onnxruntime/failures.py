"""Finds the node that failed in a run, and its inputs.

ONNX Runtime names the node in its message, but in a model several nodes may have the same name, or none. The run is therefore repeated
on a copy in which every node has a unique name. If that message names none of them (for a function that the runtime expanded), a bisection
over prefixes of the model finds the first node that fails.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnxruntime

from opdump.adapters.onnxruntime.model_file import ModelFile, open_session
from opdump.adapters.onnxruntime.model_graph import ModelNode
from opdump.adapters.onnxruntime.tensors_of_run import Tensors, answer_and_tensors

_RUNNING: Final = "Non-zero status code returned while running"
_NAMED: Final = re.compile(r"while running \S+ node\. Name:'(.*?)' Status Message")


@dataclass(frozen=True, slots=True)
class Failure:
    """The node of the model's own graph that failed, and the values of its inputs, including those that its bodies read."""

    node: ModelNode
    inputs: Tensors


class FailureSearch:
    """Finds the failed nodes of one model. `once` are the names of nodes that must not run a second time."""

    def __init__(
        self,
        model: ModelFile,
        nodes: Sequence[ModelNode],
        options: onnxruntime.SessionOptions,
        providers: Sequence[Any],
        once: Collection[str] = (),
    ) -> None:
        self._model = model
        self._nodes = nodes
        self._once = once
        self._options = options
        self._providers = providers
        self._makers = {value: node for node in nodes for value in node.outputs if value}

    def find(self, error: BaseException, feeds: Mapping[str, Any]) -> Failure | None:
        """The node that failed with `error`; None if no node failed because the inputs do not fit the model."""
        if _RUNNING not in str(error):
            return None
        node = self._named_once(str(error))
        if node is None and not self._once:
            node = self._named_uniquely(feeds) or self._first_failing(feeds)
        if node is None:
            return None
        return Failure(node, self._inputs_of(node, feeds))

    def _named_once(self, message: str) -> ModelNode | None:
        found = _NAMED.search(message)
        if found is None or not found[1]:
            return None
        called = [node for top in self._nodes for node in top.with_bodies if node.written_name == found[1]]
        # Nodes in bodies only make a name ambiguous: the message names the outermost node first.
        return called[0] if len(called) == 1 and not called[0].parent else None

    def _named_uniquely(self, feeds: Mapping[str, Any]) -> ModelNode | None:
        names = {node.position: node.name for node in self._nodes}
        own_outputs = [output.name for output in self._model.proto.graph.output]
        error = self._error_of(self._model.part(names, own_outputs, names), feeds)
        found = _NAMED.search(str(error)) if error is not None else None
        return next((node for node in self._nodes if found is not None and node.name == found[1]), None)

    def _first_failing(self, feeds: Mapping[str, Any]) -> ModelNode | None:
        good, bad = 0, len(self._nodes)
        if not self._beginning_fails(bad, feeds):
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._beginning_fails(middle, feeds):
                bad = middle
            else:
                good = middle
        return self._nodes[bad - 1]

    def _beginning_fails(self, count: int, feeds: Mapping[str, Any]) -> bool:
        beginning = self._nodes[:count]
        outputs = [value for value in beginning[-1].outputs if value]
        return self._error_of(self._model.part([node.position for node in beginning], outputs), feeds) is not None

    def _error_of(self, content: bytes, feeds: Mapping[str, Any]) -> Exception | None:
        session = self._session(content)
        try:
            session.run(None, self._accepted(session, feeds))
        except Exception as error:  # noqa: BLE001  the runtime's errors have no class of their own
            return error
        return None

    def _inputs_of(self, node: ModelNode, feeds: Mapping[str, Any]) -> Tensors:
        """The inputs of the node, recomputed by the nodes before it; empty if these must not run again."""
        made = [value for value in dict.fromkeys(node.inputs) if value in self._makers]
        if not made:
            return {}
        needed: dict[str, ModelNode] = {}
        waiting = list(made)
        while waiting:
            maker = self._makers.get(waiting.pop())
            if maker is not None and maker.name not in needed:
                needed[maker.name] = maker
                waiting.extend(maker.reads)
        if any(name in self._once for name in needed):
            return {}
        session = self._session(self._model.part([each.position for each in needed.values()], made))
        _, tensors = answer_and_tensors(
            session, [], made, self._accepted(session, feeds), None, answer_is_private=False
        )
        return tensors

    def _session(self, content: bytes) -> onnxruntime.InferenceSession:
        options = self._options
        severity = options.log_severity_level
        try:
            options.log_severity_level = 4  # these sessions are expected to fail
            return open_session(self._model, content, "disable", options, self._providers)
        finally:
            options.log_severity_level = severity

    @staticmethod
    def _accepted(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
        known = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
        return {name: value for name, value in feeds.items() if name in known}
