"""Exception mode: operators run, and only those that raise are recorded.

`run` runs an operator that PyTorch dispatches. `record` records a failure above the operators: in a PyTorch function, or in an
`autograd.Function`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from opdump.adapters.torch.device_graphs import DeviceGraphs
from opdump.adapters.torch.failures import records_failures
from opdump.adapters.torch.naming import Naming, arguments_of_call
from opdump.adapters.torch.private_names import without_modes
from opdump.adapters.torch.provenance import Provenance
from opdump.adapters.torch.schemas import Found, OperatorSchema, nested_tensors
from opdump.adapters.torch.unseen import unseen
from opdump.recorder import LiveTensor, Recorder, isolated_from_program
from opdump.records import OpRecord


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
            with unseen():
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
        with without_modes(), unseen():
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
        with unseen():
            op, _, _ = self._naming.identify(schema, args, kwargs)
            assert op is not None, "only operators without a kernel go without a record"
            lives: list[LiveTensor] = [(slot, argument, tensor, "", "") for slot, argument, tensor in inputs]
            self._recorder.failed_op(op, error, lives, opened)
