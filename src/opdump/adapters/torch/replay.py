"""Replays recorded PyTorch operators in a chosen precision, through the dispatcher (`torch.ops`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch

from opdump.adapters.replay import AS_RECORDED, Array, Replayed, Script
from opdump.adapters.torch.private_names import operator_schema
from opdump.adapters.torch.replay_arguments import call_of, has_unknown
from opdump.adapters.torch.replay_script import script_of
from opdump.adapters.torch.replay_tensors import array_of, empty_as, tensor_of
from opdump.adapters.torch.schemas import Found, OperatorSchema, schema_of, tensors_returned
from opdump.errors import CannotReplayError
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import OpRecord, TensorRecord

_REFUSALS: Final = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
"""What PyTorch's kernels raise for dtypes or values that they do not support."""


class TorchReplayer:
    """Runs operators of PyTorch's dispatcher on CPU tensors."""

    def draws(self, op: OpRecord) -> bool:
        return draws_random(op)

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        func = _replayable(op)
        try:
            outputs = {slot: array_of(tensor) for slot, _, tensor in _called(func, op, inputs, values, dtype)}
        except _REFUSALS as error:
            if dtype == "float64":
                # Some kernels have no float64, such as the recurrent networks of oneDNN.
                return self.run(op, inputs, values, dtype="float32")
            raise CannotReplayError(_refused(op, error)) from error
        return Replayed(outputs, dtype)

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        func = _replayable(op)
        reference = self.run(op, inputs, values).dtype
        every = _all_values(inputs, values)
        try:
            # Only a run shows which outputs there are, and where in the result.
            found = _called(func, op, inputs, every, AS_RECORDED)
            kept = [each for each in found if each[0] not in unspecified_outputs(op.kernel) and each[2].numel()]
            return script_of(func, op, inputs, every, outputs, kept, title=title, reference=reference)
        except _REFUSALS as error:
            raise CannotReplayError(_refused(op, error)) from error


def draws_random(op: OpRecord) -> bool:
    """Whether the operator draws random numbers with these arguments."""
    func = _overload(op.kernel)
    if func is None or torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    # Arguments that had their default values are not recorded.
    given = {
        argument.name: op.arguments.get(argument.name, argument.default_value)
        for argument in operator_schema(func).arguments
    }
    drops = given.get("dropout_p", given.get("p"))
    trains = given.get("train", given.get("training"))
    return drops != 0.0 and trains is not False


_OVERLOADS: Final[dict[str, Any]] = {}
"""The operators that were found by name. Others may be registered later."""


def _overload(kernel: str) -> Any:
    found = _OVERLOADS.get(kernel)
    if found is None:
        namespace, _, rest = kernel.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), name, None) if namespace and name else None
        found = None if packet is None else getattr(packet, overload or "default", None)
        if found is not None:
            _OVERLOADS[kernel] = found
    return found


def _replayable(op: OpRecord) -> Any:
    """The operator of the dispatcher. Raises CannotReplayError if it cannot be replayed."""
    func = _overload(op.kernel)
    if func is None:
        raise CannotReplayError(f"PyTorch {torch.__version__} has no operator {op.kernel}")
    if draws_random(op):
        raise CannotReplayError(
            f"{op.kernel} draws random numbers, and dumps do not contain the state of the generator"
        )
    unknown = [name for name, value in op.arguments.items() if has_unknown(value)]
    if unknown:
        raise CannotReplayError(
            f"argument {unknown[0]} of {op.kernel} was recorded by type only: {op.arguments[unknown[0]]}"
        )
    return func


def _refused(op: OpRecord, error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return f"PyTorch {torch.__version__} does not run {op.kernel} on these inputs on the CPU: {lines[0]}"


def _all_values(inputs: Mapping[int, TensorRecord], values: Mapping[int, Array]) -> dict[int, Array]:
    """The values, and zeros for memory that was not written before the operator.

    Raises CannotReplayError if other values are missing.
    """
    found = {}
    for slot, record in inputs.items():
        if slot in values:
            found[slot] = values[slot]
        elif record.skip == "allocation" or 0 in record.shape:
            found[slot] = empty_as(record)
        else:
            raise CannotReplayError(f"the dump does not have the values of {record.argument or record.name}")
    return found


def _called(
    func: Any, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], width: str
) -> list[Found]:
    floating: torch.dtype | None = None if width == AS_RECORDED else getattr(torch, width)
    every = _all_values(inputs, values)
    tensors = {record.argument: tensor_of(every[slot], record, floating) for slot, record in inputs.items()}
    args, kwargs = call_of(func, op, tensors, floating)
    with torch.no_grad():
        result = func(*args, **kwargs)
    return tensors_returned(_schema(func), tuple(args), kwargs, result)


@cache
def _schema(func: Any) -> OperatorSchema:
    """The same as `schema_of`, worked out once for each operator."""
    return schema_of(func)


REPLAYER: Final = TorchReplayer()
