"""Runs operators of the program only once, in a plain run. The dump covers the rest of the model, which is fed with their results.

model     x -> Exp -> Ask (ai.onnx.contrib) -> Tanh -> y
plain     the same; the result of Ask is also an output           runs once, its answer is the program's
rest      x -> Exp        result of Ask -> Tanh -> y              runs as often as the dump needs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime
from onnx import TypeProto, ValueInfoProto

from opdump.adapters.host.element_types import element_of_type
from opdump.adapters.onnxruntime.hazards import is_random, operators_of_program
from opdump.adapters.onnxruntime.model_file import ModelFile
from opdump.adapters.onnxruntime.model_graph import ModelNode
from opdump.adapters.onnxruntime.tensors_of_run import Tensors, fed_tensor


@dataclass(frozen=True, slots=True)
class RunOnce:
    """The nodes of one model that run once.

    `operators` are the operators of the program, by the nodes that run them. `nodes` are these nodes and the random ones, whose results in a
    second run would differ from those in the answer.
    """

    operators: Mapping[str, str]
    nodes: tuple[ModelNode, ...]

    @classmethod
    def of(cls, ran: ModelFile, nodes: Sequence[ModelNode]) -> RunOnce | None:
        """None for a model without operators of the program."""
        operators = operators_of_program(ran.proto, nodes)
        if not operators:
            return None
        return cls(operators, tuple(node for node in nodes if node.name in operators or is_random(node)))

    @property
    def values(self) -> tuple[str, ...]:
        """The outputs of the nodes."""
        return tuple(value for node in self.nodes for value in node.outputs if value)

    @property
    def note(self) -> str:
        """What is recorded of them, for the dump's notes."""
        return (
            f"{self._named()}, runs only as often as the program requested, because its effect is unknown; the dump has the other "
            "operators from a second run on its results"
        )

    def refusal(self, model: ModelFile, session: onnxruntime.InferenceSession) -> str:
        """Why the rest cannot run separately, so that no run of the model is recorded; empty if it can."""
        made = {value for node in model.proto.graph.node for value in node.output}
        types = {output.name: output.type for output in session.get_outputs()}
        for value in self.values:
            if value not in made:
                return f"{self._named()}, must not run twice, and only the optimised model has {value}; record it at level 'disable'"
            element = element_of_type(types.get(value, ""))
            if element is None or not (element.known_to_numpy or element.bits == 0):
                return f"{self._named()}, must not run twice, and {types.get(value, 'its result')} cannot be fed to the rest of the model"
        return ""

    def rest_of(
        self, ran: ModelFile, nodes: Sequence[ModelNode], wanted: Sequence[str], session: onnxruntime.InferenceSession
    ) -> bytes:
        """The model without these nodes: their outputs are fed, and `wanted` are its outputs. `session` provides the types."""
        left_out = {node.name for node in self.nodes}
        given = {output.name: output.type for output in session.get_outputs() if output.name in set(self.values)}
        inputs = []
        for name, type_text in given.items():
            element = element_of_type(type_text)
            assert element is not None
            kind = TypeProto()
            kind.tensor_type.elem_type = element.number
            inputs.append(ValueInfoProto(name=name, type=kind))
        kept = [node for node in nodes if node.name not in left_out]
        return ran.part(
            [node.position for node in kept],
            wanted,
            inputs=inputs,
            reads={value for node in kept for value in node.reads},
        )

    def run(
        self,
        session: onnxruntime.InferenceSession,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
    ) -> tuple[list[Any], dict[str, Any], Tensors]:
        """The answer of a plain run, the outputs of the operators in it, and these outputs as tensors."""
        fetched = tuple(dict.fromkeys((*names, *self.values)))
        found = dict(zip(fetched, session.run(list(fetched), feeds, run_options), strict=True))
        types = {output.name: output.type for output in session.get_outputs()}
        given = {value: found[value] for value in self.values}
        tensors: Tensors = {name: fed_tensor(value, types[name]) for name, value in given.items()}
        return [found[name] for name in names], given, tensors

    def _named(self) -> str:
        name, operator = next(iter(self.operators.items()))
        more = len(self.operators) - 1
        return f"{name}, {operator} of the program" + (f" (and {more} more)" if more else "")
