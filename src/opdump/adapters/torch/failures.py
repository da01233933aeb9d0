"""Records failures: functions of autograd that raise, and in exception mode operators that do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from opdump.adapters.replacements import ReplacingPart
from opdump.adapters.torch.device_graphs import DeviceGraphs
from opdump.adapters.torch.isolation import hidden_from_torch_modes
from opdump.adapters.torch.memory import Provenance
from opdump.adapters.torch.mode_stack import recording_here
from opdump.adapters.torch.naming import Naming, arguments_of_call
from opdump.adapters.torch.private_names import without_modes
from opdump.adapters.torch.schemas import Found, OperatorSchema, nested_tensors
from opdump.recorder import LiveTensor, Recorder, isolated_from_program
from opdump.records import OpRecord

# Records failures outside of dispatched operators: a `torch.autograd.Function` that raises.
#
#     Function.apply        the forward raised: the operator is the function, its inputs are the arguments of `apply`
#     its backward          the same, with the gradients as inputs
#
# An error is recorded where it is raised. Functions further up that also record failures see in its traceback that it was recorded: it
# contains a frame of a function marked with `records_failures`.

RecordFailure = Callable[[str, tuple[Any, ...], Mapping[str, Any], Exception], object]
"""Records the operator of that name as failed, with the tensors among its arguments."""
_RECORDING: set[CodeType] = set()


def records_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that records every error that passes through it. Mark a replacement after `replace`, which changes its code object."""
    _RECORDING.add(function.__code__)
    return function


def was_recorded(error: BaseException) -> bool:
    """Whether the error has passed through a marked function below the caller's own frame."""
    traceback = error.__traceback__
    traceback = None if traceback is None else traceback.tb_next  # the first frame is the caller's
    while traceback is not None:
        if traceback.tb_frame.f_code in _RECORDING:
            return True
        traceback = traceback.tb_next
    return False


class FunctionFailures(ReplacingPart):
    """Watches all `torch.autograd.Function`s from `attach` to `detach`."""

    def __init__(self, record: RecordFailure) -> None:
        super().__init__()
        self._record = record

    def attach(self) -> None:
        apply = torch.autograd.Function.__dict__["apply"]  # a class method, in Python or C depending on the release
        record = self._record

        def watched_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            try:
                return apply.__get__(None, cls)(*args, **kwargs)
            except Exception as error:
                if recording_here() and not was_recorded(error):
                    record(cls.__name__, args, kwargs, error)
                raise

        self.replace(torch.autograd.Function, "apply", classmethod(watched_apply))
        records_failures(watched_apply)
        function = torch.autograd.function.BackwardCFunction
        for name in ("apply", "apply_boxed"):
            # Newer releases have `apply_boxed`, for functions that take their gradients as a list.
            if name in vars(function):
                watched = self._backward(vars(function)[name])
                self.replace(function, name, watched)
                records_failures(watched)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched_backward(node: Any, *args: Any) -> Any:
            # Copied, because the backward may empty the list while it runs.
            given = tuple(tuple(each) if isinstance(each, list) else each for each in args)
            try:
                return original(node, *args)
            except Exception as error:
                if recording_here() and not was_recorded(error):
                    self._record(type(node).__name__, given, {}, error)
                raise

        return watched_backward


# Exception mode: operators run, and only those that raise are recorded.
#
# `run` runs an operator that PyTorch dispatches. `record` records a failure above the operators: in a PyTorch function, or in an
# `autograd.Function`.


class FailedOperators:
    """Records operators that fail, and counts the others."""

    def __init__(self, recorder: Recorder, naming: Naming, provenance: Provenance, graphs: DeviceGraphs) -> None:
        self._recorder = recorder
        self._naming = naming
        self._provenance = provenance
        self._graphs = graphs

    @records_failures
    def run(
        self,
        schema: OperatorSchema,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Iterable[Found],
    ) -> Any:
        """Runs an operator. `inputs` is consumed only if it fails or writes into one of them."""
        recorder = self._recorder
        opened: OpRecord | None = None
        if schema.changes and not schema.kind:
            # Inputs that it writes into are read now, the others only if it fails.
            with hidden_from_torch_modes():
                opened = OpRecord(schema.op_type, "", 0)
                inputs = list(inputs)
                written = [found for found in inputs if found[1].partition("[")[0] in schema.changes]
                recorder.before_op(opened, [(slot, argument, tensor, "", "") for slot, argument, tensor in written])
        self._naming.passes_by()
        try:
            result = call()
        except Exception as error:
            self._fails(replace(schema, kind=""), args, kwargs, inputs, error, opened)
            raise
        except BaseException:
            if opened is not None:
                recorder.abandoned_op(opened)
            raise
        if opened is not None:
            recorder.after_op(opened, ())
        else:
            recorder.count_op(schema.kind or "no exception")
        return result

    @isolated_from_program
    def record(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
        """Records a failure above the operators as an operator of that name, with its inputs as they are now."""
        if self._graphs.is_recording():
            self._graphs.passes()  # recording would wait for the device and break the graph
            return
        schema = OperatorSchema(name, "", "", (), (), ())
        with without_modes(), hidden_from_torch_modes():
            op, _, _ = self._naming.identify(schema, (), {})
            assert op is not None
            found = (*nested_tensors(args, ""), *nested_tensors(kwargs, ""))
            lives: list[LiveTensor] = [
                (slot, path, tensor, self._provenance.source(tensor), "") for slot, (path, tensor) in enumerate(found)
            ]
            self._recorder.failed_op(replace(op, arguments=arguments_of_call(args, kwargs)), error, lives)

    @isolated_from_program
    def _fails(
        self,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Iterable[Found],
        error: Exception,
        opened: OpRecord | None,
    ) -> None:
        with hidden_from_torch_modes():
            op, _, _ = self._naming.identify(schema, args, kwargs)
            assert op is not None, "only operators without a kernel have no record"
            lives: list[LiveTensor] = [(slot, argument, tensor, "", "") for slot, argument, tensor in inputs]
            self._recorder.failed_op(op, error, lives, opened)
