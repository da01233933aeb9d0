"""The dispatch mode that records every operator of its thread: forward, backward and optimizer.

`CaptureMode` is on the mode stack only while a step is dumped. It names each operator (`Naming`), passes the inputs to the recorder, runs
the operator, and passes on the outputs. In exception mode it only runs operators, and names those that fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.nn.parameter import is_lazy

from opdump.adapters.models import Models
from opdump.adapters.torch.device import Accelerators
from opdump.adapters.torch.device_graphs import DeviceGraphs
from opdump.adapters.torch.distributed import WAIT, Collectives
from opdump.adapters.torch.failures import FailedOperators, records_failures
from opdump.adapters.torch.following import Following, Running, is_available
from opdump.adapters.torch.isolation import hidden_from_torch_modes
from opdump.adapters.torch.memory import Provenance, Storages, dtype_name, keep_memory, shape_of
from opdump.adapters.torch.mode_stack import RecordingMode, put_on, take_off
from opdump.adapters.torch.naming import Naming, OperatorNames, Site
from opdump.adapters.torch.private_names import (
    autograd_node,
    dispatch_depth,
    graph_task,
    operator_schema,
    sequence_number,
    shard_of,
    without_modes,
)
from opdump.adapters.torch.reader import TensorReader
from opdump.adapters.torch.schemas import (
    Found,
    OperatorSchema,
    nested_tensors,
    schema_of,
    tensors_among,
    tensors_returned,
)
from opdump.adapters.torch.scopes import DumpSelection, RootScopes
from opdump.adapters.torch.training import TrainingObserver
from opdump.adapters.watching import Watches
from opdump.graph import PARAMETER_PREFIX, GraphInput, GraphNode, GraphOutput, GraphValue
from opdump.plan import DumpPlan
from opdump.recorder import Live, LiveTensor, Recorder, WatchRecorder, isolated_from_program
from opdump.records import OpRecord, SkipReason

# Describes an operator as a node of the graph.

Described = TypeVar("Described", GraphInput, GraphOutput)


def node_of(op: OpRecord, inputs: Sequence[LiveTensor], outputs: Sequence[Found], *, runs_kernel: bool) -> GraphNode:
    """The graph node of an operator that has run."""
    return GraphNode(
        op_name=op.op_name,
        op_type=op.op_type,
        phase=op.phase,
        inputs=_by_slot(
            {slot: GraphInput(source, dtype_name(tensor), shape_of(tensor)) for slot, _, tensor, source, _ in inputs},
            GraphInput(),
        ),
        outputs=_by_slot(
            {slot: GraphOutput(dtype_name(tensor), shape_of(tensor)) for slot, _, tensor in outputs},
            GraphOutput("", ()),
        ),
        attributes=op.arguments,
        stack=op.stack,
        runs_kernel=runs_kernel,
    )


def _by_slot(values: Mapping[int, Described], nothing: Described) -> tuple[Described, ...]:
    """The values in slot order; `nothing` in a slot without a tensor."""
    return tuple(values.get(slot, nothing) for slot in range(max(values, default=-1) + 1))


# Records values without an operator: parameters, optimizer state, inputs of a network.

PARAMETER = "Parameter"
"""The op_type of values that are recorded without an operator."""


class ProgramValues:
    """Names these values for the graph, and records those that the dump contains."""

    def __init__(
        self,
        plan: DumpPlan,
        recorder: Recorder,
        observer: TrainingObserver,
        naming: Naming,
        provenance: Provenance,
        graphs: DeviceGraphs,
    ) -> None:
        self._recorder = recorder
        self._observer = observer
        self._naming = naming
        self._provenance = provenance
        self._graphs = graphs
        self._are_saved = plan.saves_values and plan.outputs and plan.selection != "marked"
        self._parameter_names: dict[int, str] = {}
        self.following: Following | None = None

    def seed_parameters(self, module: torch.nn.Module, graph_id: int, scopes: RootScopes | None) -> None:
        """Register the parameters of a root module as sources (not constants), with the scopes of their owners."""
        graph = self._recorder.graph(graph_id)
        for prefix, owner in module.named_modules():
            scope = "Default" if scopes is None else scopes.registered.get(id(owner), scopes.scope)
            for name, parameter in owner.named_parameters(recurse=False):
                if is_lazy(parameter):
                    continue  # no shape and no memory before the first forward
                full_name = f"{prefix}.{name}" if prefix else name
                shard = shard_of(parameter)
                self._provenance.note(shard, f"{PARAMETER_PREFIX}{full_name}")
                graph.add_parameter(GraphValue(full_name, dtype_name(shard), tuple(shard.shape)))
                self._naming.parameter_scopes[id(parameter)] = scope
                self._parameter_names[id(parameter)] = full_name

    def seed_optimizer_state(self, optimizer: torch.optim.Optimizer, graph_id: int) -> None:
        """Register optimizer state (momenta, step counts) as sources (not constants): `Parameter.exp_avg.fc.weight`."""
        graph = self._recorder.graph(graph_id)
        for parameter, state in optimizer.state.items():
            owner = self._parameter_names.get(id(parameter))
            if owner is None or not isinstance(state, Mapping):
                continue
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    shard = shard_of(value)
                    self._provenance.note(shard, f"{PARAMETER_PREFIX}{key}.{owner}")
                    graph.add_parameter(GraphValue(f"{key}.{owner}", dtype_name(shard), shape_of(shard)))

    def record_root_input(self, name: str, graph_id: int, tensor: torch.Tensor) -> None:
        """Record an input of a root module that no operator of this step made as a parameter, as MindSpore does."""
        tensor = shard_of(tensor)
        if not self._provenance.is_written(tensor):
            self._provenance.note(tensor, f"{PARAMETER_PREFIX}{name}")
            self._recorder.graph(graph_id).add_parameter(GraphValue(name, dtype_name(tensor), shape_of(tensor)))
            self.record_value(name, graph_id, tensor)

    def record_value(self, name: str, graph_id: int, tensor: torch.Tensor) -> None:
        """Record a value without an operator: a parameter after its update, an input of the root module."""
        if not self._are_saved or is_lazy(tensor) or self._graphs.is_recording():
            return
        naming, following = self._naming, self.following
        if following is not None:
            if following.value(name, graph_id, shard_of(tensor)):
                return
            following.pause()
        site = naming.sites.value(graph_id, name)
        if not (site.selected or naming.is_selected(site, PARAMETER)):
            return
        # Positional for speed, as in `Naming.identify`: this runs for every parameter in a step.
        op = OpRecord(
            PARAMETER,
            name,
            naming.now(),
            self._observer.step,
            naming.net_name,
            graph_id,
            naming.rank_id,
            0,
            0,
            0,
            naming.next_order(),
            site.next_occurrence(naming.sites.step),
            "optimizer",
        )
        self._recorder.before_op(op, ())
        tensor = shard_of(tensor)
        self._recorder.after_op(op, ((0, "", tensor, "", ""),))
        if following is not None:
            following.learns_value(site, op, tensor)


# Lists operators that launch no kernel (views, allocations) when they first run, and only counts them from then on.

Describe = Callable[[OpRecord, Site, OperatorSchema, list[LiveTensor], list[Found]], object]
"""Adds an operator to its graph, with its inputs and outputs."""


class WithoutKernel:
    """Records these operators after they have run."""

    def __init__(
        self, recorder: Recorder, observer: TrainingObserver, naming: Naming, provenance: Provenance, describe: Describe
    ) -> None:
        self._recorder = recorder
        self._observer = observer
        self._naming = naming
        self._provenance = provenance
        self._describe = describe
        self.following: Following | None = None

    @isolated_from_program
    def ran(
        self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, func: Any = None
    ) -> None:
        """List or count an operator that has run. `func` is the operator; None if it ran outside of the mode."""
        following, naming = self.following, self._naming
        if following is not None:
            following.pause()
        if self._is_known_in_gradient(schema):
            naming.next_order()
            self._recorder.count_op(schema.kind)
            if following is not None:
                following.learns_listed(func, schema, args, kwargs, result, None)
            return
        op, site, link = naming.identify(schema, args, kwargs)
        naming.links.begins(link)
        if op is None:
            self._recorder.count_op(schema.kind)
        else:
            self._recorder.skip_op(op)
        if op is not None or schema.kind == "allocation":
            outputs = tensors_returned(schema, args, kwargs, result)
            if schema.kind == "allocation":
                for slot, _, tensor in outputs:
                    self._provenance.unwritten.add(site.source(slot))
                    self._provenance.note(tensor, site.source(slot))
            if op is not None:
                source = self._provenance.source
                found = tensors_among(schema.tensors, args, kwargs)
                inputs: list[LiveTensor] = [(slot, name, tensor, source(tensor), "") for slot, name, tensor in found]
                self._describe(op, site, schema, inputs, outputs)
        if following is not None:
            following.learns_listed(func, schema, args, kwargs, result, site, link, is_listed_anew=op is not None)

    def _is_known_in_gradient(self, schema: OperatorSchema) -> bool:
        """Whether the running gradient ran this operator in an earlier step; such a view needs no site or link again."""
        task = graph_task()
        if task < 0 or schema.kind == "allocation" or self._recorder.is_deferring or torch.is_grad_enabled():
            return False
        node: torch.autograd.graph.Node | None = autograd_node()
        if node is None or self._observer.current().recomputing:
            return False
        link = self._naming.links.find(node, task)
        if link is None:
            return False
        return link.views.setdefault(id(schema), self._naming.sites.step) < self._naming.sites.step


# The dispatch mode.


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
        storages: Storages | None = None,
    ) -> None:
        """`storages` are shared with the reader of the tensors."""
        super().__init__()
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
        self._records_operators = self.failures is None and not calls_only
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
            and not any((self._judges, self._calls_only, self.failures, self.watches, self.models))
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
        if not self.recording or self._is_in_graph():
            with hidden_from_torch_modes():
                return func(*args, **kwargs)
        schema = self._schema_if_any(func)
        if schema is None:
            return self.run_as_one(func.name(), func, args, kwargs)
        if self._any_foreign(types):
            # A subclass with its own dispatch goes first; the operators that it runs on plain tensors come back here.
            return NotImplemented
        if schema.asynchronous:
            self.collectives.ran()
        # The operator itself runs inside `hidden_from_torch_modes`, too: function modes would see this call, which is not the program's.
        with hidden_from_torch_modes():
            if schema.kind or not self._records_operators:
                return self._run_unrecorded(schema, func, args, kwargs)
            running = self._begin(schema, args, kwargs, tensors_among(schema.tensors, args, kwargs), func)
            if running is None:
                return func(*args, **kwargs)
            self.naming.links.begins(running.link)
            try:
                result = func(*args, **kwargs)
            except BaseException as error:
                self.fails(running, schema, error)
                raise
            self.end(running, schema, args, kwargs, lambda: tensors_returned(schema, args, kwargs, result), result)
            return result

    def _is_in_graph(self) -> bool:
        """Whether a device records the next operator into a graph; counts it."""
        if self._in_graph is None or not self._in_graph():
            return False
        self.graphs.passes()
        return True

    def _run_unrecorded(
        self, schema: OperatorSchema, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Runs an operator that gets no record here: it has no kernel, only failures are recorded, or only calls."""
        if self.failures is not None:
            inputs = tensors_among(schema.tensors, args, kwargs)
            return self.failures.run(schema, lambda: func(*args, **kwargs), args, kwargs, inputs)
        if self._calls_only:
            if not schema.kind:
                self._launches()
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self.without_kernel.ran(schema, args, kwargs, result, func)
        return result

    def run_operator(self, func: Any, call: Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Records one operator that runs outside the mode, with autograd (`composites.ExactOperators`)."""
        schema = self.schema(func)
        if schema.kind:
            result = call()
            if not self._calls_only and self.failures is None:
                with hidden_from_torch_modes():
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
        with hidden_from_torch_modes():
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
        if self._is_in_graph():
            return call()
        if self.failures is not None:
            return self.failures.run(schema, call, args, kwargs, list(tensors))
        if self._calls_only:
            self._launches()
            return call()
        first = sequence_number()
        with hidden_from_torch_modes():
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
        with hidden_from_torch_modes():
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

    def _schema_if_any(self, func: Any) -> OperatorSchema | None:
        """None for a higher-order operator, which runs functions."""
        if id(func) not in self._schemas and operator_schema(func) is None:
            return None
        return self.schema(func)

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
        assert op is not None, "only operators without a kernel have no record"
        running = Running(op, site, link)
        if self._plan.devices is not None:
            inputs = list(inputs)
            running.op = op = self._of_selected_device(op, inputs)
        selected = not op.skip

        def constant(slot: int, argument: str, tensor: torch.Tensor) -> str:
            return self._recorder.constant(op, Live(slot, argument, tensor))

        named = constant if selected and self._names_constants and schema.kernel != WAIT else None
        running.inputs = self.provenance.lives(inputs, named, schema.unread_among(args, kwargs))
        learner = following if following is not None and following.state == "learning" else None
        if learner is not None:
            learner.begins()
        if not selected:
            self._recorder.skip_op(op)
        elif schema.kernel != WAIT:
            self._read_inputs(running, schema)
        if learner is not None:
            learner.looks(func, schema, args, kwargs, running)
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

    def _of_selected_device(self, op: OpRecord, inputs: Iterable[Found]) -> OpRecord:
        wants = self._plan.wants_device
        if op.skip or all(wants(tensor.device.type, tensor.device.index or 0) for _, _, tensor in inputs):
            return op
        return replace(op, skip="device not selected")

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
