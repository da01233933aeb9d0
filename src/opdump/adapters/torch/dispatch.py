"""The dispatch mode that sees every operator of its thread: forward, backward and optimizer.

`CaptureMode` is pushed while a step is dumped and gone otherwise. For each operator it finds out where the operator belongs
(graph, scope, line of the program, and in backward the forward operator through autograd's sequence numbers), hands the inputs
to the recorder, lets the operator run, and hands over the outputs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

from opdump.graph import PARAMETER_PREFIX, GraphInput, GraphNode, GraphOutput, GraphValue
from opdump.plan import DumpPlan
from opdump.recorder import Live, Recorder
from opdump.records import Frame, OpRecord, Phase, SkipReason

from .arguments import json_value
from .mode_stack import RecordingMode, put_on, take_off
from .naming import GRADIENTS, OpNames
from .operator_kinds import kind_of, true_name, writes_of
from .provenance import Provenance
from .stacks import StackReader
from .training import TrainingObserver
from .training_scopes import RootScopes

Described = TypeVar("Described", GraphInput, GraphOutput)

_CHECKPOINT_FILE = torch.utils.checkpoint.__file__

_COMPARABLE = frozenset({type(None), bool, int, float, str, list, tuple, torch.dtype, torch.device, torch.layout})
PARAMETER = "Parameter"
"""op_type of what is recorded without an operator."""
_NO_ARGUMENTS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """What the mode needs to know of an operator, worked out once."""

    op_type: str
    kernel: str
    kind: SkipReason
    tensors: tuple[tuple[int, str], ...]
    """Position and name of the arguments that are tensors or lists of tensors, in schema order."""
    others: tuple[tuple[int, str], ...]
    """Position and name of all other arguments."""
    written: tuple[tuple[int, str], ...]
    """Position and name of the arguments that the operator writes into and does not return."""


@dataclass(slots=True)
class _Link:
    """What a backward operator inherits from its forward operator."""

    op_name: str
    scope: str
    graph_id: int
    stack: tuple[Frame, ...]
    marked: bool


class _Thread(threading.local):
    """State of one thread: sequence numbers are counted per thread by autograd itself."""

    last_sequence: int = -1


class CaptureMode(RecordingMode):
    """Records every operator of the threads that it is pushed in."""

    def __init__(
        self,
        plan: DumpPlan,
        recorder: Recorder,
        observer: TrainingObserver,
        *,
        rank_id: int = 0,
        marked_functions: Collection[CodeType] = (),
    ) -> None:
        super().__init__()
        self.recording = False
        self._plan = plan
        self._recorder = recorder
        self._observer = observer
        self._rank_id = rank_id
        self._marked_functions = frozenset(marked_functions)
        self._schemas: dict[int, tuple[OperatorSchema, Any]] = {}
        self._names = OpNames()
        self._stacks = StackReader()
        self._provenance = Provenance()
        self._links: dict[int, _Link] = {}
        self._thread = _Thread()
        self._selected: dict[tuple[str, str], bool] = {}
        self._arguments: dict[tuple[int, str], tuple[Any, Mapping[str, Any]]] = {}
        self._foreign: dict[type, bool] = {}
        self._order = 0
        self._timestamp = 0
        self._lock = threading.Lock()
        self._parameter_scopes: dict[int, str] = {}
        self._parameter_names: dict[int, str] = {}
        self._unwritten: set[str] = set()
        """Outputs of allocations: whoever reads such memory reads what happened to be there."""
        self.matched_kernels: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.recording or torch._C._len_torch_dispatch_stack():
            # Below are only PyTorch's own modes (fake tensors, tracing): they run programs that are written down.
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self.run_as_one(func.name(), func, args, kwargs)
        if types and self._any_foreign(types):
            # A subclass that dispatches by itself goes first; what it then runs on plain tensors comes here again.
            return NotImplemented
        schema = self._schema(func)
        if schema.kind:
            result = func(*args, **kwargs)
            self._skipped(schema, args, kwargs, result)
            return result
        with torch._C.DisableTorchFunction():
            op, selected, inputs, link = self._begin(schema, args, kwargs, _tensors(schema.tensors, args, kwargs))
            if link is not None:
                self._tie(link)
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._end(op, selected, schema, inputs, _outputs(schema, args, kwargs, result))
        return result

    def run_operator(self, func: Any, call: Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Records one operator that runs outside the mode, with autograd (`composites.ExactOperators`)."""
        schema = self._schema(func)
        return self._run_outside(
            schema,
            call,
            args,
            kwargs,
            _tensors(schema.tensors, args, kwargs),
            lambda result: _outputs(schema, args, kwargs, result),
        )

    def run_as_one(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Runs a whole function outside the mode and records it as one operator with its inputs and outputs."""
        schema = OperatorSchema(name, name, "", (), (), ())
        found = (*_nested(args, ""), *_nested(kwargs, ""))

        def outputs(result: Any) -> list[Live]:
            returned = _outputs(schema, (), {}, result)
            written = getattr(function, "written", ())
            return returned + [Live(len(returned) + slot, "", tensor) for slot, tensor in enumerate(written)]

        return self._run_outside(
            schema,
            lambda: function(*args, **kwargs),
            (),
            {},
            (Live(slot, path, tensor) for slot, (path, tensor) in enumerate(found)),
            outputs,
        )

    def _run_outside(
        self,
        schema: OperatorSchema,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: Iterable[Live],
        outputs: Callable[[Any], list[Live]],
    ) -> Any:
        first = torch._C._autograd._get_sequence_nr()
        with torch._C.DisableTorchFunction():
            op, selected, inputs, link = self._begin(schema, args, kwargs, tensors)
        result = call()
        # Above autograd the nodes are made inside the call, and there may be several.
        last = torch._C._autograd._get_sequence_nr()
        if link is not None:
            for sequence in range(first, last):
                self._links[sequence] = link
        self._thread.last_sequence = last
        with torch._C.DisableTorchFunction():
            self._end(op, selected, schema, inputs, outputs(result))
        return result

    @contextmanager
    def on(self) -> Iterator[None]:
        """On in the calling thread for the length of the block; passes through while nothing is recorded."""
        put_on(self)
        try:
            yield
        finally:
            take_off(self)

    def _schema(self, func: Any) -> OperatorSchema:
        # By identity: OpOverload hashes itself in Python.
        known = self._schemas.get(id(func))
        if known is None:
            known = self._schemas[id(func)] = (schema_of(func), func)
        return known[0]

    def next_step(self) -> None:
        """Forgets what belongs to one step: occurrences, sources, links to forward operators."""
        self._names.next_step()
        self._provenance.clear()
        self._links.clear()
        self._order = 0

    def seed_parameters(self, module: torch.nn.Module, graph_id: int, scopes: RootScopes | None) -> None:
        """Tells the parameters of a root module apart from constants, and gives each the scope of its owner."""
        graph = self._recorder.graph(graph_id)
        for prefix, owner in module.named_modules():
            scope = "Default" if scopes is None else scopes.registered.get(id(owner), scopes.scope)
            for name, parameter in owner.named_parameters(recurse=False):
                full_name = f"{prefix}.{name}" if prefix else name
                self._provenance.note(parameter, f"{PARAMETER_PREFIX}{full_name}")
                graph.add_parameter(GraphValue(full_name, _dtype(parameter), tuple(parameter.shape)))
                self._parameter_scopes[id(parameter)] = scope
                self._parameter_names[id(parameter)] = full_name

    def seed_optimizer_state(self, optimizer: torch.optim.Optimizer, graph_id: int) -> None:
        """Tells the state of an optimizer (momenta, step counts) apart from constants: `Parameter.exp_avg.fc.weight`."""
        graph = self._recorder.graph(graph_id)
        for parameter, state in optimizer.state.items():
            owner = self._parameter_names.get(id(parameter))
            if owner is None or not isinstance(state, Mapping):
                continue
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self._provenance.note(value, f"{PARAMETER_PREFIX}{key}.{owner}")
                    graph.add_parameter(GraphValue(f"{key}.{owner}", _dtype(value), _shape(value)))

    def record_root_input(self, name: str, graph_id: int, tensor: torch.Tensor) -> None:
        """Records an input of a root module that no operator of this step made, as MindSpore does: as a parameter."""
        if not self._provenance.source(tensor):
            self._provenance.note(tensor, f"{PARAMETER_PREFIX}{name}")
            self._recorder.graph(graph_id).add_parameter(GraphValue(name, _dtype(tensor), _shape(tensor)))
            self.record_value(name, graph_id, tensor)

    def record_value(self, name: str, graph_id: int, tensor: torch.Tensor) -> None:
        """Records a value that is no operator's: a parameter after its update, an input of the root module."""
        plan = self._plan
        if not plan.outputs or plan.selection == "marked" or not self._is_selected(name, PARAMETER):
            return
        op = OpRecord(
            op_type=PARAMETER,
            op_name=name,
            timestamp=self._now(),
            step=self._observer.step,
            net_name=self._plan.net_name,
            graph_id=graph_id,
            rank_id=self._rank_id,
            order=self._next_order(),
            occurrence=self._names.occurrence(graph_id, name),
            phase="optimizer",
        )
        self._recorder.before_op(op, ())
        self._recorder.after_op(op, (Live(0, "", tensor),))

    def _begin(
        self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: Iterable[Live]
    ) -> tuple[OpRecord, bool, list[Live], _Link | None]:
        op, selected, link = self._identify(schema, args, kwargs)
        if selected and self._plan.devices is not None:
            inputs = list(inputs)
            if any(not self._is_wanted_device(tensor.device) for _, _, tensor, *_ in inputs):
                op, selected = replace(op, skip="device not selected"), False
        lives = []
        for slot, argument, tensor, *_ in inputs:
            source = self._provenance.source(tensor)
            if not source and selected:
                source = self._recorder.constant(op, Live(slot, argument, tensor))
                self._provenance.note(tensor, source)
            lives.append(Live(slot, argument, tensor, source, source not in self._unwritten))
        if selected:
            self._recorder.before_op(op, lives)
        else:
            self._recorder.skip_op(op)
        return op, selected, lives, link

    def _end(
        self, op: OpRecord, selected: bool, schema: OperatorSchema, inputs: list[Live], outputs: list[Live]
    ) -> None:
        for live in outputs:
            self._provenance.note(live.tensor, f"{op.op_name}:{live.slot}")
        if selected:
            self._recorder.after_op(op, outputs)
        self._describe(op, schema, inputs, outputs)

    def _skipped(self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Lists an operator that launches no kernel."""
        with torch._C.DisableTorchFunction():
            op, _, link = self._identify(schema, args, kwargs)
            if link is not None:
                self._tie(link)
            self._recorder.skip_op(op)
            known = op.op_name in self._recorder.graph(op.graph_id)
            if known and schema.kind != "allocation":
                return
            outputs = _outputs(schema, args, kwargs, result)
            if schema.kind == "allocation":
                for live in outputs:
                    source = f"{op.op_name}:{live.slot}"
                    self._unwritten.add(source)
                    self._provenance.note(live.tensor, source)
            if not known:
                inputs = [
                    Live(slot, argument, tensor, self._provenance.source(tensor))
                    for slot, argument, tensor, *_ in _tensors(schema.tensors, args, kwargs)
                ]
                self._describe(op, schema, inputs, outputs)

    def _identify(
        self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[OpRecord, bool, _Link | None]:
        """Names the operator that is about to run, decides whether it is wanted, and says what its gradient inherits."""
        observer = self._observer
        position = observer.current()
        task = torch._C._current_graph_task_id()
        frame = sys._getframe(2)
        forward_op = ""
        where: object
        phase: Phase = position.phase
        scope, graph_id = position.scope, position.graph_id
        call: object = position.call_id
        link = None
        if self._recorder.holding and (task >= 0 or position.root is not None or phase == "optimizer"):
            self._recorder.release()
        if task >= 0:
            if position.recomputing or (torch.is_grad_enabled() and _is_recomputing(frame)):
                phase = "recomputation"
            else:
                phase = "backward"
                call = ("backward", task)
                # None between two nodes, where the engine adds up gradients.
                node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
                sequence = -1 if node is None else int(node._sequence_nr())
                link = self._links.get(sequence)
                if link is None:
                    variable = getattr(node, "variable", None)
                    scope = GRADIENTS + self._parameter_scopes.get(id(variable), "Default")
        if link is not None:
            scope, graph_id, stack, forward_op = GRADIENTS + link.scope, link.graph_id, link.stack, link.op_name
            marked = link.marked
            where = forward_op
        else:
            stack, where = self._stacks.read(frame, None if position.root is None else position.call_id)
            marked = self._plan.selection != "marked" or position.marked or self._in_marked_function(frame)
        with self._lock:
            name, occurrence = self._names.next(graph_id, scope, schema.op_type, call, (phase, where))
            timestamp, order = self._now(), self._next_order()
        forward = task < 0 or phase == "recomputation" or torch.is_grad_enabled()
        skip = schema.kind
        if not skip and not (marked and self._is_selected(name, schema.op_type)):
            skip = "not selected"
        op = OpRecord(
            op_type=schema.op_type,
            op_name=name,
            timestamp=timestamp,
            step=observer.step,
            net_name=self._plan.net_name,
            graph_id=graph_id,
            rank_id=self._rank_id,
            order=order,
            occurrence=occurrence,
            phase=phase,
            kernel=schema.kernel,
            forward_op=forward_op,
            stack=stack,
            arguments=self._arguments_of(graph_id, name, schema, args, kwargs),
            skip=skip,
        )
        return op, not skip, _Link(name, scope, graph_id, stack, marked) if forward else None

    def _tie(self, link: _Link) -> None:
        """Ties the autograd node that was made for this operator, if one was, to the operator."""
        # Autograd makes the node, and counts, before the operator is dispatched.
        sequence = torch._C._autograd._get_sequence_nr()
        if sequence != self._thread.last_sequence:
            self._thread.last_sequence = sequence
            self._links[sequence - 1] = link

    def _in_marked_function(self, frame: FrameType) -> bool:
        return bool(self._marked_functions) and not self._marked_functions.isdisjoint(self._stacks.codes(frame))

    def _is_selected(self, name: str, op_type: str) -> bool:
        plan = self._plan
        if plan.selection != "kernels":
            return True
        key = (name, op_type)
        selected = self._selected.get(key)
        if selected is None:
            matched = [pattern.text for pattern in plan.kernels if pattern.matches(name, op_type)]
            self.matched_kernels.update(matched)
            selected = self._selected[key] = bool(matched) or not plan.kernels
        return selected

    def _is_wanted_device(self, device: torch.device) -> bool:
        return self._plan.wants_device(device.type, device.index or 0)

    def _arguments_of(
        self,
        graph_id: int,
        name: str,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """The non-tensor arguments as JSON values; the same object as last time where they are the same."""
        given = len(args)
        if not schema.others:
            return _NO_ARGUMENTS
        raw = [args[index] if index < given else kwargs.get(argument) for index, argument in schema.others]
        for position, value in enumerate(raw):
            if value.__class__ not in _COMPARABLE:
                raw[position] = str(json_value(value))
        # 1, 1.0 and True are equal but not the same argument.
        seen = (raw, [value.__class__ for value in raw])
        known = self._arguments.get((graph_id, name))
        if known is not None and known[0] == seen:
            return known[1]
        mapping = {
            argument: json_value(value)
            for index, argument in schema.others
            if index < given or argument in kwargs
            for value in (args[index] if index < given else kwargs[argument],)
        }
        self._arguments[(graph_id, name)] = (seen, mapping)
        return mapping

    def _describe(self, op: OpRecord, schema: OperatorSchema, inputs: list[Live], outputs: list[Live]) -> None:
        """Adds the operator to its graph the first time it runs."""
        graph = self._recorder.graph(op.graph_id)
        if op.op_name in graph:
            return
        graph.add(
            GraphNode(
                op_name=op.op_name,
                op_type=op.op_type,
                phase=op.phase,
                inputs=_by_slot(
                    {live.slot: GraphInput(live.source, _dtype(live.tensor), _shape(live.tensor)) for live in inputs},
                    GraphInput(),
                ),
                outputs=_by_slot(
                    {live.slot: GraphOutput(_dtype(live.tensor), _shape(live.tensor)) for live in outputs},
                    GraphOutput("", ()),
                ),
                attributes=op.arguments,
                stack=op.stack,
                runs_kernel=not schema.kind,
            )
        )

    def _any_foreign(self, types: Sequence[type]) -> bool:
        for cls in types:
            foreign = self._foreign.get(cls)
            if foreign is None:
                dispatch = getattr(cls, "__torch_dispatch__", None)
                foreign = dispatch is not None and dispatch is not torch._C._disabled_torch_dispatch_impl
                foreign = foreign and dispatch is not torch.Tensor.__dict__.get("__torch_dispatch__")
                foreign = self._foreign[cls] = foreign and cls is not torch.Tensor and cls is not torch.nn.Parameter
            if foreign:
                return True
        return False

    def _now(self) -> int:
        self._timestamp = max(self._timestamp + 1, time.time_ns() // 1000)
        return self._timestamp

    def _next_order(self) -> int:
        self._order += 1
        return self._order - 1


def schema_of(func: Any) -> OperatorSchema:
    """Works out what the mode needs to know of an operator from its schema."""
    arguments = func._schema.arguments
    tensors: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    for index, argument in enumerate(arguments):
        is_tensor = "Tensor" in str(argument.type)
        (tensors if is_tensor else others).append((index, argument.name))
    op_type, kernel = true_name(func)
    names = {argument.name: index for index, argument in enumerate(arguments)}
    returned = sum(1 for value in func._schema.returns if value.alias_info is not None and value.alias_info.is_write)
    written = tuple((names[name], name) for name in writes_of(func)) if not returned else _unreturned(func, names)
    return OperatorSchema(op_type, kernel, kind_of(func), tuple(tensors), tuple(others), written)


def _unreturned(func: Any, names: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
    """Written arguments that no return value aliases."""
    aliased: set[str] = set()
    for value in func._schema.returns:
        if value.alias_info is not None:
            aliased |= set(value.alias_info.before_set)
    kept = []
    for name in writes_of(func):
        info = func._schema.arguments[names[name]].alias_info
        if info is None or aliased.isdisjoint(info.before_set):
            kept.append((names[name], name))
    return tuple(kept)


def _tensors(places: Sequence[tuple[int, str]], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Live]:
    """The tensors among the arguments; None keeps its slot, a list takes a slot for each element."""
    given = len(args)
    slot = 0
    for index, argument in places:
        value = args[index] if index < given else kwargs.get(argument)
        if isinstance(value, torch.Tensor):
            yield Live(slot, argument, value)
            slot += 1
        elif isinstance(value, (list, tuple)):
            for position, element in enumerate(value):
                if isinstance(element, torch.Tensor):
                    yield Live(slot, f"{argument}[{position}]", element)
                slot += 1
        else:
            slot += 1


def _outputs(schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> list[Live]:
    """The tensors that an operator returned, then those that it wrote into without returning them."""
    if isinstance(result, torch.Tensor):
        found = [Live(0, "", result)]
    elif isinstance(result, (tuple, list)):
        found = [
            Live(slot, path, value)
            for slot, (path, value) in enumerate(_nested(result, "", keep_none=True))
            if value is not None
        ]
    else:
        found = []
    if schema.written:
        first = (max(live.slot for live in found) + 1) if found else 0
        found += [
            Live(first + slot, argument, tensor)
            for slot, argument, tensor, *_ in _tensors(schema.written, args, kwargs)
        ]
    return found


def _nested(values: Any, path: str, *, keep_none: bool = False) -> Iterator[tuple[str, Any]]:
    """The tensors in nested sequences and mappings with their places."""
    items = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in items:
        here = f"{path}[{key}]"
        if isinstance(value, torch.Tensor) or (keep_none and value is None):
            yield here, value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from _nested(value, here, keep_none=keep_none)


def _by_slot(values: Mapping[int, Described], nothing: Described) -> tuple[Described, ...]:
    """The values at their slots; `nothing` in a slot that holds no tensor."""
    return tuple(values.get(slot, nothing) for slot in range(max(values, default=-1) + 1))


def _is_recomputing(frame: FrameType | None) -> bool:
    """Whether activation checkpointing is running a forward again inside the backward."""
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT_FILE:
            return True
        frame = frame.f_back
    return False


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)
