"""The dispatch mode that records every operator of its thread: forward, backward and optimizer.

`CaptureMode` is on the mode stack only while a step is dumped. It names each operator (`Naming`), passes the inputs to the recorder, runs
the operator, and passes on the outputs. In exception mode it only runs operators, and names those that fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from opdump.adapters.models import Models
from opdump.adapters.torch.accelerators import Accelerators
from opdump.adapters.torch.call_depth import BESIDE_AN_OPERATOR, CallDepth
from opdump.adapters.torch.collectives import WAIT, Collectives
from opdump.adapters.torch.description import node_of
from opdump.adapters.torch.device_graphs import DeviceGraphs
from opdump.adapters.torch.dump_selection import DumpSelection
from opdump.adapters.torch.failed_operators import FailedOperators
from opdump.adapters.torch.failures import records_failures
from opdump.adapters.torch.following import Following, is_available
from opdump.adapters.torch.mode_stack import RecordingMode, put_on, take_off
from opdump.adapters.torch.naming import Naming
from opdump.adapters.torch.operator_names import OperatorNames
from opdump.adapters.torch.private_names import (
    dispatch_depth,
    operator_schema,
    sequence_number,
    without_modes,
)
from opdump.adapters.torch.provenance import Provenance
from opdump.adapters.torch.reader import TensorReader
from opdump.adapters.torch.running import Running
from opdump.adapters.torch.schemas import (
    Found,
    OperatorSchema,
    nested_tensors,
    schema_of,
    tensors_among,
    tensors_returned,
)
from opdump.adapters.torch.sites import Site
from opdump.adapters.torch.storages import Storages, keep_memory
from opdump.adapters.torch.training import TrainingObserver
from opdump.adapters.torch.unseen import unseen
from opdump.adapters.torch.values import ProgramValues
from opdump.adapters.torch.without_kernel import WithoutKernel
from opdump.adapters.watching import Watches
from opdump.plan import DumpPlan
from opdump.recorder import Live, LiveTensor, Recorder, WatchRecorder, isolated_from_program
from opdump.records import OpRecord, SkipReason


class CaptureMode(RecordingMode):
    """Records every operator of the threads whose mode stack it is on."""

    def __init__(
        self,
        plan: DumpPlan,
        recorder: Recorder,
        observer: TrainingObserver,
        *,
        rank_id: int = 0,
        marks: DumpSelection | None = None,
        models: Models | None = None,
        names: OperatorNames | None = None,
        calls_only: bool = False,
        accelerators: Accelerators | None = None,
        depth: CallDepth | None = None,
        storages: Storages | None = None,
    ) -> None:
        """`storages` are shared with the reader of the tensors."""
        super().__init__()
        self.depth = CallDepth() if depth is None else depth
        self.recording = False
        self._plan = plan
        self._recorder = recorder
        self.observer = observer
        self._schemas: dict[int, tuple[OperatorSchema, Any]] = {}
        self.naming = Naming(plan, recorder, observer, rank_id=rank_id, marks=marks, models=models)
        self.models = models
        self.storages = Storages() if storages is None else storages
        self.provenance = Provenance(self.storages, are_read=plan.inputs)
        self._foreign: dict[type, bool] = {}
        self.watches: Watches | None = None
        if plan.mode.watches:
            assert isinstance(recorder, WatchRecorder), "make_recorder returns one for this mode"
            known = OperatorNames() if names is None else names
            self.watches = Watches(plan, recorder, self.naming.now, known, keep_memory, without_modes)
        self._calls_only = calls_only
        self.failures: FailedOperators | None = None
        self._names_constants = plan.mode.files_values
        self._reads_all = plan.mode.reads_operators
        self._judges = plan.mode.detects_overflow
        self._accelerators = Accelerators() if accelerators is None else accelerators
        self.graphs = DeviceGraphs(recorder, self.naming, self._accelerators)
        self._in_graph = self.graphs.watch
        if plan.mode.failures_only:
            self.failures = FailedOperators(recorder, self.naming, self.provenance, self.graphs)
        self.values = ProgramValues(plan, recorder, observer, self.naming, self.provenance, self.graphs)
        self.collectives = Collectives(recorder, self.graphs.is_recording)
        self.launched = threading.local()
        """`count`: the number of operators with a kernel that this thread has run."""
        self.follow: Callable[..., Any] | None = None
        """In a followed step, the fast path, which is called first for each operator."""
        self.without_kernel = WithoutKernel(recorder, observer, self.naming, self.provenance, self._describe)
        self.following = Following(self, self.without_kernel.ran) if is_available() and self.takes_runs else None
        self.without_kernel.following = self.following
        self._missed = None if self.following is None else self.following.missed
        self.values.following = self.following

    @property
    def recorder(self) -> Recorder:
        return self._recorder

    @property
    def takes_runs(self) -> bool:
        """Whether the fast path applies: a plain dump of all operators that needs only summaries and digests, or summaries and elements
        copied at once.
        """
        plan, recorder = self._plan, self._recorder
        reader = recorder.reader
        return (
            type(recorder) is Recorder
            and isinstance(reader, TensorReader)
            and (reader.takes_summaries_alone or (reader.takes_elements_too and recorder.copies_elements))
            and reader.storages is self.storages
            and self._reads_all
            and not (self._judges or self._calls_only or self.failures or self.watches or self.models)
            and self._in_graph is None
            and plan.devices is None
            and plan.selection == "all"
            and recorder.takes_runs
        )

    @records_failures
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        follow = self.follow
        if follow is not None and self.recording:
            result = follow(func, types, args, kwargs)
            if result is not self._missed:
                return result
        kwargs = kwargs or {}
        if dispatch_depth():
            # Only PyTorch's own modes (fake tensors, tracing) are below; the operator is traced, not executed.
            return func(*args, **kwargs)
        if not self.recording:
            with unseen():
                return func(*args, **kwargs)
        self.depth.add(BESIDE_AN_OPERATOR)
        try:
            return self._dispatched(func, types, args, kwargs)
        finally:
            self.depth.remove(BESIDE_AN_OPERATOR)

    @records_failures
    def _dispatched(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._in_graph is not None and self._in_graph():
            self.graphs.passes()
            with unseen():
                return func(*args, **kwargs)
        known = self._schemas.get(id(func))
        if known is None and operator_schema(func) is None:
            return self.run_as_one(func.name(), func, args, kwargs)
        if types and self._any_foreign(types):
            # A subclass with its own dispatch goes first; the operators that it runs on plain tensors come back here.
            return NotImplemented
        schema = self.schema(func) if known is None else known[0]
        if schema.asynchronous:
            self.collectives.ran()
        # The operator itself runs inside `unseen`, too: function modes would see this call, which is not the program's.
        with unseen():
            if self.failures is not None:
                inputs = tensors_among(schema.tensors, args, kwargs)
                return self.failures.run(schema, lambda: func(*args, **kwargs), args, kwargs, inputs)
            if schema.kind:
                result = func(*args, **kwargs)
                if not self._calls_only:
                    self.without_kernel.ran(schema, args, kwargs, result, func)
                return result
            if self._calls_only:
                self._launches()
                return func(*args, **kwargs)
            running = self._begin(schema, args, kwargs, tensors_among(schema.tensors, args, kwargs), func)
            if running is None:
                return func(*args, **kwargs)
            if running.link is not None:
                self.naming.links.begins(running.link)
            try:
                result = func(*args, **kwargs)
            except BaseException as error:
                self.fails(running, schema, error)
                raise
            self.end(running, schema, args, kwargs, lambda: tensors_returned(schema, args, kwargs, result), result)
            return result

    def run_operator(self, func: Any, call: Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Records one operator that runs outside the mode, with autograd (`composites.ExactOperators`)."""
        schema = self.schema(func)
        if schema.kind:
            result = call()
            if not self._calls_only and self.failures is None:
                with unseen():
                    self.without_kernel.ran(schema, args, kwargs, result)
            return result
        return self._run_outside(
            schema,
            call,
            args,
            kwargs,
            tensors_among(schema.tensors, args, kwargs),
            lambda result: tensors_returned(schema, args, kwargs, result),
        )

    def run_as_one(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Runs a whole function outside the mode and records it as one operator with its inputs and outputs."""
        self.collectives.may_run()
        schema = OperatorSchema(name, name, "", (), (), ())
        found = (*nested_tensors(args, ""), *nested_tensors(kwargs, ""))

        def outputs(result: Any) -> list[Found]:
            returned = tensors_returned(schema, (), {}, result)
            written = getattr(function, "written", ())
            return returned + [(len(returned) + slot, "", tensor) for slot, tensor in enumerate(written)]

        return self._run_outside(
            schema,
            lambda: function(*args, **kwargs),
            (),
            {},
            ((slot, path, tensor) for slot, (path, tensor) in enumerate(found)),
            outputs,
        )

    @isolated_from_program
    def fails(self, running: Running, schema: OperatorSchema, error: BaseException) -> None:
        with unseen():
            self.storages.written_anywhere()  # it may have written a part of its results
            if schema.kernel == WAIT:
                self._has_waited(running, schema, has_failed=True)
            if isinstance(error, Exception):
                self._recorder.failed_op(running.op, error, running.inputs)
            else:
                self._recorder.abandoned_op(running.op)

    def _launches(self) -> None:
        self.launched.count = getattr(self.launched, "count", 0) + 1

    @records_failures
    def _run_outside(
        self,
        schema: OperatorSchema,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: Iterable[Found],
        outputs: Callable[[Any], list[Found]],
    ) -> Any:
        if schema.asynchronous:
            self.collectives.ran()
        if self._in_graph is not None and self._in_graph():
            self.graphs.passes()
            return call()
        if self.failures is not None:
            return self.failures.run(schema, call, args, kwargs, list(tensors))
        if self._calls_only:
            self._launches()
            return call()
        first = sequence_number()
        with unseen():
            running = self._begin(schema, args, kwargs, tensors)
        if running is None:
            return call()
        try:
            result = call()
        except BaseException as error:
            self.fails(running, schema, error)
            raise
        # Above autograd, the call itself makes the autograd nodes, possibly several.
        if running.link is not None:
            self.naming.links.made(first, running.link)
        with unseen():
            self.end(running, schema, (), {}, lambda: outputs(result), result)
        return result

    @contextmanager
    def on(self) -> Iterator[None]:
        """Switched on in the calling thread within the block. While `recording` is False, operators pass through."""
        put_on(self)
        try:
            yield
        finally:
            take_off(self)

    def schema(self, func: Any) -> OperatorSchema:
        # Keyed by identity, because OpOverload computes its hash in Python. The entry keeps `func` alive, so its id is not reused.
        known = self._schemas.get(id(func))
        if known is None:
            known = self._schemas[id(func)] = (schema_of(func), func)
        return known[0]

    def close(self) -> None:
        """The capture has ended."""
        if self.following is not None:
            self.following.close()
            self.following = self.values.following = self.without_kernel.following = None

    def abandon(self) -> None:
        """Like `close`, for a forked process: a thread that does not exist there may hold the lock that `close` waits for."""
        self.follow = self.following = self.values.following = self.without_kernel.following = None

    def next_step(self) -> None:
        """Forget what belongs to one step: occurrences, sources, links to forward operators."""
        if self.following is not None:
            self.following.end_step()
        self.naming.sites.next_step()
        self.provenance.next_step()
        self.naming.links.next_step()
        self.naming.restart_order()
        if self.following is not None:
            self.following.next_step()

    @isolated_from_program
    def _begin(
        self,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Iterable[Found],
        func: Any = None,
    ) -> Running:
        following = self.following
        if following is not None:
            following.pause()
        if self.collectives.pending:
            self.collectives.file_arrived()  # before this operator can overwrite their results
        op, site, link = self.naming.identify(schema, args, kwargs)
        assert op is not None, "only operators without a kernel go without a record"
        running = Running(op, site, link)
        if not running.op.skip and self._plan.devices is not None:
            inputs = list(inputs)
            if any(not self._is_wanted_device(tensor.device) for _, _, tensor in inputs):
                running.op = replace(running.op, skip="device not selected")
        op = running.op
        selected = not op.skip

        def constant(slot: int, argument: str, tensor: torch.Tensor) -> str:
            return self._recorder.constant(op, Live(slot, argument, tensor))

        named = constant if selected and self._names_constants and schema.kernel != WAIT else None
        running.inputs = self.provenance.lives(inputs, named, schema.unread_among(args, kwargs))
        learns = following is not None and following.state == "learning"
        if learns and following is not None:
            following.begins()
        if not selected:
            self._recorder.skip_op(op)
        elif schema.kernel != WAIT:
            self._read_inputs(running, schema)
        if learns and following is not None:
            following.looks(func, schema, args, kwargs, running)
        return running

    def _read_inputs(self, running: Running, schema: OperatorSchema, reason: SkipReason = "") -> None:
        if not self._reads_all:
            return
        op, lives = running.op, running.inputs
        if reason:
            lives = [(slot, argument, tensor, source, reason) for slot, argument, tensor, source, _ in lives]
        if self.models is not None:
            lives = list(self.models.without_excluded(op, "input", lives))
        # Only schemas of PyTorch's own operators reliably declare what they write into.
        changes = schema.changes if self._judges and schema.kernel.startswith("aten::") else None
        self._recorder.before_op(op, lives, changes)

    def _has_waited(self, running: Running, schema: OperatorSchema, *, has_failed: bool = False) -> None:
        """The program has waited for a functional collective: record its result, and read the input of the wait."""
        for _, _, tensor, *_ in running.inputs:
            if self.collectives.pending:
                self.collectives.waited_for(tensor, has_failed=has_failed)
        if not running.op.skip:
            self._read_inputs(running, schema, "failed" if has_failed else "")

    def _wait_for_the_host(self, running: Running, outputs: Sequence[Found]) -> None:
        """Wait for an asynchronous copy from a device: host memory is read in place, and the program does not wait for it here."""
        of = self._accelerators.of
        if running.op.skip or all(of(tensor) is not None for _, _, tensor in outputs):
            return
        for _, _, tensor, *_ in running.inputs:
            accelerator = of(tensor)
            if accelerator is not None:
                accelerator.wait(accelerator.current_stream(tensor.device))

    @isolated_from_program
    def end(
        self,
        running: Running,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        returned: Callable[[], list[Found]],
        result: Any,
    ) -> None:
        outputs = returned()
        self._forget_written(schema, running.inputs)
        if schema.is_late(args, kwargs):
            self._wait_for_the_host(running, outputs)
        op, site = running.op, running.site
        if schema.kernel == WAIT:
            self._has_waited(running, schema)
        for slot, _, tensor in outputs:
            self.provenance.note(tensor, site.source(slot))
        if schema.counted:
            with self.storages.counted(tensors_among(schema.counted, args, kwargs)):
                self._record_outputs(op, schema, outputs, result)
        else:
            self._record_outputs(op, schema, outputs, result)
        if not site.described:
            self._describe(op, site, schema, running.inputs, outputs)
        if self.following is not None:
            self.following.learns(site, args, kwargs, outputs, result)

    def _forget_written(self, schema: OperatorSchema, inputs: Sequence[LiveTensor]) -> None:
        """Forget what is known of the memory that the operator has written, so that it is read again."""
        if schema.asynchronous:
            self.storages.written_unseen()
        elif not schema.declares_writes:
            self.storages.written_anywhere()
        elif schema.changes:
            self.storages.written(live[2] for live in inputs if live[1].partition("[")[0] in schema.changes)

    def _record_outputs(self, op: OpRecord, schema: OperatorSchema, outputs: list[Found], result: Any) -> None:
        if not op.skip:
            lives: Sequence[LiveTensor] = ()
            if self._reads_all:
                lives = [(slot, argument, tensor, "", "") for slot, argument, tensor in outputs]
                if self.models is not None:
                    lives = self.models.without_excluded(op, "output", lives)
            if schema.asynchronous and lives:
                self.collectives.began(op, list(lives), result)
            else:
                self._recorder.after_op(op, lives)
            if self.models is not None:
                self._launches()
        if self.watches is not None:
            self.watches.ran(op, outputs, collective=schema.asynchronous)

    def _is_wanted_device(self, device: torch.device) -> bool:
        return self._plan.wants_device(device.type, device.index or 0)

    def _describe(
        self, op: OpRecord, site: Site, schema: OperatorSchema, inputs: list[LiveTensor], outputs: list[Found]
    ) -> None:
        """Add the operator to its graph, the first time that it runs."""
        site.described = True
        node = node_of(op, inputs, outputs, runs_kernel=not schema.kind)
        self._recorder.graph(op.graph_id).add(node)

    def _any_foreign(self, types: Sequence[type]) -> bool:
        for cls in types:
            foreign = self._foreign.get(cls)
            if foreign is None:
                dispatch = getattr(cls, "__torch_dispatch__", None)
                foreign = dispatch is not None and dispatch is not torch.Tensor.__dict__.get("__torch_dispatch__")
                foreign = self._foreign[cls] = foreign and cls is not torch.Tensor and cls is not torch.nn.Parameter
            if foreign:
                return True
        return False
