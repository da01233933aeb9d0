"""Record runs of ONNX models into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import ModelProto, helper

from opdump.adapters.host import NumpyReader
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.plan import DumpPlan
from opdump.recorder import make_recorder
from opdump.records import TensorRecord
from opdump.testing import CollectingWriter

Array = npt.NDArray[Any]
FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64


class Recording:
    """One model under capture, and what its writer received."""

    def __init__(
        self, model: str | Path | bytes | ModelProto, plan: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self.plan = DumpPlan(path=Path("dump"), **{"saved_data": "full", **(plan or {})})
        self.writer = CollectingWriter()
        self.recorder = make_recorder(self.plan, self.writer, NumpyReader.of_plan(self.plan))
        self.session = OnnxSession(model, **{"recorder": self.recorder, "plan": self.plan, "model_id": 1, **settings})

    def run(self, feeds: Mapping[str, Any], names: list[str] | None = None) -> list[Any]:
        return self.session.run(names, feeds)

    def tensors(self, name: str, occurrence: int = 0) -> dict[tuple[str, int], TensorRecord]:
        """The tensors of the operator with this name, by side and slot."""
        found = [r for r in self.writer.tensors if (r.op.op_name, r.op.occurrence) == (name, occurrence)]
        by_place: dict[tuple[str, int], TensorRecord] = {(record.io, record.slot): record for record in found}
        assert len(by_place) == len(found), "the operator ran more than once"
        return by_place

    def elements(self, name: str, io: str, slot: int = 0, occurrence: int = 0) -> Array:
        record = self.tensors(name, occurrence)[io, slot]
        assert record.payload is not None
        return record.payload.to_host()

    @property
    def captured(self) -> list[str]:
        return [op.op_name for op in self.writer.ops if not op.skip]

    @property
    def skipped(self) -> dict[str, str]:
        return {op.op_name: op.skip for op in self.writer.ops if op.skip}


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Any]],
    outputs: Mapping[str, tuple[int, Any]],
    initializers: Mapping[str, Array] | None = None,
    *,
    name: str = "graph",
    opset: int = 21,
) -> ModelProto:
    """A checked model; inputs and outputs by name, with element type and shape."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(value, *kind) for value, kind in inputs.items()],
        [helper.make_tensor_value_info(value, *kind) for value, kind in outputs.items()],
        [onnx.numpy_helper.from_array(array, value) for value, array in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def plain_run(
    model: str | Path | bytes, feeds: Mapping[str, Any], names: list[str] | None = None, level: str = "DISABLE_ALL"
) -> list[Any]:
    """The outputs of ONNX Runtime in a separate session."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    content = str(model) if isinstance(model, Path) else model
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(names, feeds))


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
