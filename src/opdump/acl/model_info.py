"""The description of a model: its inputs and outputs, its gears, and the shapes of its outputs in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opdump.acl.data_types import TensorInfo
from opdump.acl.failures import LOG
from opdump.acl.gears import Gears, Shapes, with_gears
from opdump.onnx.recording import adapter_module

if TYPE_CHECKING:
    from opdump.adapters.onnxruntime.model_file import ModelFile


class ModelInfo:
    """Inputs and outputs of a model. A model with gears has the additional input that selects the gear, and its outputs have the
    largest shapes.

    `values` of ONNX Runtime are the inputs and outputs of a session. Raises CallError for invalid gears.
    """

    def __init__(self, model: ModelFile, inputs: Sequence[Any], outputs: Sequence[Any], where: str) -> None:
        known = adapter_module("tensors_of_run").dtype_and_dims
        metadata = {entry.key: entry.value for entry in model.proto.metadata_props}
        given = tuple(TensorInfo(value.name, *known(value)) for value in inputs)
        self.own_inputs: tuple[TensorInfo, ...]
        self.gears: Gears | None
        self.own_inputs, self.gears = with_gears(metadata, given, where)
        self._model = model
        self._open = tuple(TensorInfo(value.name, *known(value)) for value in outputs)
        self._shapes: dict[int, Shapes] = {}

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.own_inputs if self.gears is None else (*self.own_inputs, self.gears.selector)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        if self.gears is None:
            return self._open
        shapes = self.output_dims(self.gears.largest)
        return tuple(TensorInfo(info.name, info.dtype, dims) for info, dims in zip(self._open, shapes, strict=True))

    def output_dims(self, gear: int) -> Shapes:
        """The shapes of the outputs in a gear; -1 is known only after a run."""
        assert self.gears is not None
        found = self._shapes.get(gear)
        if found is None:
            names = [info.name for info in self.own_inputs]
            inferred = adapter_module("model_file").output_shapes(
                self._model, dict(zip(names, self.gears.shapes[gear], strict=True))
            )
            found = tuple(inferred.get(info.name, info.dims) for info in self._open)
            open_ones = [info.name for info, dims in zip(self._open, found, strict=True) if min(dims, default=0) < 0]
            if open_ones:
                LOG.warning(
                    "the shape of %s is known only after a run; call acl.mdl.get_cur_output_dims then",
                    ", ".join(open_ones),
                )
            self._shapes[gear] = found
        return found

    def size(self, side: str, index: int) -> int:
        """Bytes of an input or output in the largest gear; every unknown dimension counts as 1."""
        if side == "output":
            return self.outputs[index].least_size
        if self.gears is None or index == len(self.own_inputs):
            return self.inputs[index].least_size
        info = self.own_inputs[index]
        return max(TensorInfo(info.name, info.dtype, shapes[index]).least_size for shapes in self.gears.shapes)
