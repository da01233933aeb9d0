"""Targets: which tensors are weights, gradients and activations, in a dump of any framework.

weight       Parameter.x, as the step left it, or as operators first read it; a variable that TensorFlow reads
gradient     the output of a backward operator
activation   the output of an activation function in the forward pass
tensor       every output, and inputs without a maker in the dump: parameters, data
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol

from opdump.checks.consequences import PARAMETER, is_root_input
from opdump.checks.operator_classes import reads_variable
from opdump.checks.watchpoints.condition import Target
from opdump.op_types import rows_of
from opdump.records import IO, OpRecord, StatisticValue

Moment = Literal["", "read", "end"]
"""For a weight: as first read in the step, or as the step left it."""

_PREFIX: Final = f"{PARAMETER}."


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ACTIVATIONS: Final = _words(
    """
    ReLU ReLU6 LeakyReLU PReLU Elu SeLU CeLU GeLU SiLU Mish HSwish HSigmoid HShrink SoftShrink Sigmoid LogSigmoid Tanh Softplus
    Softsign GLU Threshold Softmax MaskedSoftmax LogSoftmax
    """
)
_GRADIENT_SCOPES: Final = ("gradients", "gradient_tape")
_OPTIMIZER_SCOPES: Final = _words(
    """
    adam adamw adamax nadam sgd rmsprop adagrad adadelta ftrl lion lamb muon momentum gradientdescent adafactor optimizer
    lossscaleoptimizer
    """
)
_STATE_SCOPES: Final = _words(
    """
    moment1 moment2 moments accum stat exp_avg exp_avg_sq max_exp_avg_sq momentum_buffer step square_avg grad_avg acc_delta sum
    """
)
"""First parts of the names of optimizer states of a parameter."""
_NUMBERS_OF_TRAINING: Final = _words(
    """
    learning_rate momentum weight_decay global_step beta1_power beta2_power scale_sense current_iterator_step
    last_overflow_iterator_step
    """
)
"""MindSpore parameters that belong to no layer."""


class SeenTensor(Protocol):
    """An input or output, as a record or as a live tensor."""

    @property
    def io(self) -> IO: ...
    @property
    def slot(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def argument(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def statistics(self) -> Mapping[str, StatisticValue]: ...


class Role(NamedTuple):
    """The role of a tensor in the conditions. `weight` is its name if it is one, `moment` the point in the step."""

    targets: frozenset[Target]
    weight: str = ""
    moment: Moment = ""


_NONE: Final = Role(frozenset())
_TENSOR: Final = Role(frozenset({"tensor"}))


class Targets:
    """The roles of the tensors of one step, in execution order."""

    def __init__(self) -> None:
        self._read: set[str] = set()

    def end_step(self) -> None:
        """Start the next step."""
        self._read.clear()

    def role(self, op: OpRecord, io: IO, source: str, dtype: str, shape: tuple[int, ...], *, has_outputs: bool) -> Role:
        """The role of one tensor; each source that is not an operator is checked once per step."""
        if io == "input":
            return self._of_input(op, source, dtype, shape, has_outputs=has_outputs)
        if op.op_type == PARAMETER:
            is_weight = _is_float(dtype) and not _is_other(op.op_name)
            return Role(frozenset({"weight", "tensor"}), op.op_name, "end") if is_weight else _TENSOR
        if reads_variable(op.op_type):
            is_model = not (is_backward(op) or _is_of_optimizer(op.op_name) or op.op_name in self._read)
            is_weight = is_model and _is_float(dtype) and bool(shape)
            self._read.add(op.op_name)
            return Role(frozenset({"weight", "tensor"}), op.op_name, "read") if is_weight else _TENSOR
        if is_backward(op):
            return Role(frozenset({"gradient", "tensor"}))
        if op.phase != "optimizer" and _is_activation(op.op_type):
            return Role(frozenset({"activation", "tensor"}))
        return _TENSOR

    def _of_input(self, op: OpRecord, source: str, dtype: str, shape: tuple[int, ...], *, has_outputs: bool) -> Role:
        if not source:
            return _NONE if has_outputs else _TENSOR  # in a dump of only inputs
        if not source.startswith((_PREFIX, "data-")) or source in self._read:
            return _NONE
        name = source.removeprefix(_PREFIX)
        if source.startswith("data-") or is_root_input(source) or not shape:  # a number of the program is not a weight
            self._read.add(source)
            return _TENSOR
        if op.phase == "optimizer" or not _is_float(dtype) or _is_other(name):
            return _NONE  # optimizer state, or a weight whose layer did not run
        self._read.add(source)
        return Role(frozenset({"weight", "tensor"}), name, "read")


def is_backward(op: OpRecord) -> bool:
    """Whether an operator computes gradients, by its phase or, in TensorFlow graphs, by its scope."""
    if op.phase == "backward":
        return True
    return any(part.lower().startswith(_GRADIENT_SCOPES) for part in op.op_name.split("/")[:-1])


def _is_of_optimizer(op_name: str) -> bool:
    """Whether a TensorFlow operator reads optimizer state, by its scope: `adam/Sub_3/ReadVariableOp`, `training/Adam_1/...`."""
    parts = (part.lower().rstrip("_0123456789") for part in op_name.split("/")[:-1])
    return any(part in _OPTIMIZER_SCOPES for part in parts)


@lru_cache(maxsize=4096)
def _is_activation(op_type: str) -> bool:
    return any(row.concept in _ACTIVATIONS for row in rows_of(op_type))


def _is_other(name: str) -> bool:
    """Whether a parameter is optimizer state, or an input that the program passed to its network."""
    return is_root_input(name) or name in _NUMBERS_OF_TRAINING or name.partition(".")[0] in _STATE_SCOPES


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))
