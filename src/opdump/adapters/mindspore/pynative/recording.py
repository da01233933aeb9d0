"""Records dispatched operators, and backward operators that MindSpore does not dispatch, through their gradients."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from mindspore import Tensor
from mindspore.graph.api import _pynative_executor
from mindspore.utils import MsDispatchMode
from mindspore.utils.ms_dispatch import _DispatchGuardStack

from opdump.adapters.base import Settings
from opdump.adapters.graph_runtime import OperatorSelection, RunEmitter, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.mindspore.executions import kernel_of
from opdump.adapters.mindspore.models import OperatorNames
from opdump.adapters.mindspore.pynative.gradients import (
    Forward,
    Gradients,
    Part,
    RunningNode,
    UnseenOperator,
    computes_first,
    is_read_again,
    operators_of,
    unseen,
)
from opdump.adapters.mindspore.pynative.naming import (
    Marks,
    Names,
    Scopes,
    forward_scope,
    gradient_scope,
    program_frames,
)
from opdump.adapters.mindspore.pynative.tensors import (
    Makers,
    Origin,
    has_several_values,
    host_tensor,
    storage_of,
    tensors_in,
)
from opdump.adapters.mindspore.replay import argument_names
from opdump.adapters.models import Models
from opdump.adapters.replacements import Replacements
from opdump.adapters.watching import Look, Watches
from opdump.graph import PARAMETER_PREFIX, PYNATIVE, GraphInput, GraphNode, GraphOutput, GraphValue
from opdump.plan.field_types import wrong_value
from opdump.plan.selection import ModelFilter
from opdump.recorder import LiveTensor, Recorder, WatchRecorder, isolated_from_program
from opdump.records import Frame, Memory, OpRecord, Phase, SkipReason

SEEN_BY_GRADIENTS: Final = "through its gradients"
"""The argument `seen` of a backward operator that MindSpore does not dispatch."""
SEEN_BY_RESULT: Final = "through its result"
"""The argument `seen` of such a forward operator, known from autograd: a copy of a view, a concatenation of a list."""

COMPILED: Final = "jit"
"""The operator type of an autograd node that is compiled code."""


class OperatorContext(NamedTuple):
    """The name, phase and surroundings of an operator."""

    name: str
    phase: Phase
    path: str
    stack: Sequence[Frame]
    forward_op: str
    is_marked: bool


class Opened(NamedTuple):
    """An operator that is about to run, with its inputs."""

    op: OpRecord
    call: Call
    place: OperatorContext
    inputs: Sequence[tuple[str, Tensor]]
    origins: Sequence[Origin]


class _Forward(NamedTuple):
    """The tensors and arguments of a forward operator."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    arguments: Mapping[str, Any]

    def tensor(self, name: str) -> Tensor:
        """An input (`x0`) or output (`y0`)."""
        return (self.inputs if name[0] == "x" else self.outputs)[int(name[1:])]


def _arguments_of_gradient(operator: UnseenOperator, forward: _Forward) -> dict[str, Any]:
    """The arguments of an operator of the backward pass that MindSpore does not dispatch."""
    arguments = {name: value for name, value in forward.arguments.items() if name in _OF_BOTH}
    match operator.op_type:
        case "SoftmaxBackward":
            axis = forward.arguments.get("axis")
            arguments["dim"] = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
        case "UnsortedSegmentSum":
            arguments["num_segments"] = int(forward.inputs[0].shape[0])
        case "Conv2DBackpropInput":
            arguments |= {"input_sizes": _shape(forward.inputs[0]), "pad_list": _padding(forward)}
        case "Conv2DBackpropFilter":
            arguments |= {"filter_sizes": _shape(forward.inputs[1]), "pad_list": _padding(forward)}
    return arguments


def _of_results(operator: UnseenOperator, node: RunningNode, outputs: Sequence[Tensor]) -> dict[str, Any]:
    """The arguments of such an operator that its results show: the number of elements of a mean, or which part of a tensor the forward operator took."""
    part, given = node.forward.part, node.given_to(operator)
    match operator.op_type:
        case "RealDiv" if len(node.given) == 1:
            return {"y": float(outputs[0].size // max(1, node.given[0].size))}
        case "Unstack" if len(given) == 1:
            return _unstacked(_shape(given[0]), len(outputs), _shape(outputs[0]))
        case "UnsortedSegmentSum" if part is not None:
            return _selected(part)
    if part is None or len(outputs) != 1 or _shape(outputs[0]) != list(part.of):
        return {}
    return {"part": {name: list(value) if name != "offset" else value for name, value in part._asdict().items()}}


def _unstacked(shape: list[int], count: int, of_part: list[int]) -> dict[str, Any]:
    """The axis along which a tensor was cut into single slices; nothing if it could be one of several."""
    axes = [axis for axis, size in enumerate(shape) if size == count and shape[:axis] + shape[axis + 1 :] == of_part]
    return {"num": count, "axis": axes[0]} if len(axes) == 1 else {}


def _selected(part: Part) -> dict[str, Any]:
    """Which slice of a tensor was taken; nothing if it was not a single slice."""
    steps = [math.prod(part.of[axis + 1 :]) for axis in range(len(part.of))]
    for axis, step in enumerate(steps):
        if steps[:axis] + steps[axis + 1 :] == list(part.strides) and part.offset % step == 0:
            return {"segment_ids": [part.offset // step], "num_segments": part.of[axis]}
    return {}


def _shape(tensor: Tensor) -> list[int]:
    return [int(size) for size in tensor.shape]


def _padding(forward: _Forward) -> list[int]:
    """The padding of a convolution above, below, left and right, which its gradients get from the compiler in graph mode."""
    arguments = forward.arguments
    if str(arguments.get("pad_mode")).lower() != "same":
        return list(arguments.get("pad") or (0, 0, 0, 0))
    found: list[int] = []
    for axis in (2, 3):
        size, kernel = int(forward.inputs[0].shape[axis]), int(forward.inputs[1].shape[axis])
        stride, dilation = (int(arguments[name][axis]) for name in ("stride", "dilation"))
        missing = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
        found += [missing // 2, missing - missing // 2]
    return found


_OF_BOTH: Final = frozenset(
    {
        *("begin_norm_axis", "begin_params_axis", "epsilon", "is_training", "data_format"),
        *(
            "kernel_size",
            "strides",
            "stride",
            "pad_mode",
            "pad",
            "pad_list",
            "dilation",
            "group",
            "mode",
            "out_channel",
        ),
    }
)
"""Arguments that a forward operator has in common with its gradient."""


class OperatorRecording:
    """Records the operators of selected steps. `step` returns the current step, `next_order` the order of the next operator in it."""

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        step: Callable[[], int],
        next_order: Callable[[], int],
        *,
        names: OperatorNames,
        models: Models | None,
        is_in_model: Callable[[], bool],
    ) -> None:
        """`is_in_model` returns whether the current operator belongs to the network that was called last."""
        plan = recorder.plan
        self._models = models
        self._chooses_later = models is not None or plan.mode.watches
        """Models and watches select operators themselves."""
        self._is_in_model = is_in_model
        self._here = threading.local()
        self.scopes = Scopes(class_names=plan.class_names_in_scope, is_backward=lambda: self.is_backward)
        self.gradients = Gradients(self._gradient_ran, self._unseen_forward, lambda: len(self.scopes.running))
        self.names = Names(unique=plan.layout == "mindspore-2.3")
        self._recorder = recorder
        self._step = step
        self._selection = OperatorSelection(plan, ModelFilter.of(plan.models, ()))
        self._marks = Marks(settings.marks) if plan.selection == "marked" else None
        self._net_name = "" if plan.layout_facts.by_model else plan.net_name
        self._unknown_id = plan.layout_facts.unknown_id
        self._rank_id = settings.rank_id
        self._emitter = RunEmitter(recorder, rank_id=settings.rank_id, device_id=settings.rank_id)
        self._makers = Makers()
        self._read_again: dict[str, _Forward] = {}
        """By name: forward operators of this step whose tensors an operator of the backward pass reads that MindSpore does not dispatch."""
        self._next_order = next_order
        self._lock = threading.RLock()
        self._watches: Watches | None = None
        if plan.mode.watches:
            assert isinstance(recorder, WatchRecorder), "make_recorder returns one for this mode"
            self._watches = Watches(plan, recorder, self._emitter.timestamp, names, _look)
            self.watch((), settings.watch)

    def watch(self, nodes: Sequence[str], tensors: Mapping[str, Any]) -> None:
        """Watch operators by name, and tensors of the program, from now on. Does nothing outside of watch mode."""
        if self._watches is None:
            return
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                raise wrong_value("watch", name, tensor, "a mindspore.Tensor or the name of an operator")
        if nodes:
            self._watches.add_nodes(nodes)
        if tensors:
            here = OperatorContext("", "forward", self.scopes.path, program_frames(), "", False)
            self._watches.add_tensors(tensors, self._record("", here, {}))

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operator of the program and record it. Errors of the operator reach the program."""
        call = Call.of(func.name, args)
        if call.is_pseudo:
            return func(*args, **kwargs) if kwargs else func(*args)
        inputs = call.tensors()
        for _, tensor in inputs:
            tensor.data_ptr()  # waits for the operator that writes the tensor; its error reaches the program
        opened = self._begin(call, inputs)
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
            outputs = list(tensors_in((out,)))
            for tensor in outputs:
                tensor.data_ptr()
        except Exception as error:
            if opened is not None:
                self._failed(opened, error)
            raise
        if opened is not None:
            self._ended(opened, outputs)
        return out

    def end_step(self) -> None:
        """Forget everything that belongs to the step."""
        with self._lock:
            self.names.clear()
            self.gradients.clear()
            self._makers.clear()
            self._read_again.clear()

    def close(self, *, is_all: bool) -> None:
        """End the recording. `is_all`: the program has no compiled code, so marks without an operator here are unused."""
        self.gradients.is_open = False
        self._recorder.matched_kernels |= self._selection.matched_kernels
        if self._watches is not None:
            self._recorder.warnings += self._watches.unmatched()
        if self._marks is not None and is_all:
            self._recorder.warnings += self._marks.unused()

    @isolated_from_program
    def follow(self, results: Any) -> None:
        """Hook the autograd nodes of results whose gradients the program will compute."""
        with self._lock:
            for tensor in tensors_in((results,)):
                self.gradients.follow(tensor)

    @isolated_from_program
    def viewed(self, whole: Tensor, part: Tensor) -> None:
        """Note a part of a tensor, so that a copy and the gradient of it are recognised."""
        if storage_of(whole) != storage_of(part):
            return
        with self._lock:
            self._makers.viewed(part)
            node = part._grad_node
            if node is None or node.is_leaf():
                return
            place = None
            if whole.is_contiguous():
                offset = int(part.storage_offset()) - int(whole.storage_offset())
                place = Part(_shape(whole), _shape(part), offset, [int(step) for step in part.stride()])
            facts = self.scopes.path, program_frames(), self._is_marked()
            self.gradients.ran(Forward(node.name(), "", *facts, part=place), [part])

    @isolated_from_program
    def origins_of(self, arguments: Mapping[str, Any]) -> dict[str, Origin]:
        """The origins of the arguments of a compiled function, by their names in its graph.

        `Parameter.x` is the argument x or the only tensor in it; `Parameter.x:2` is the third of several tensors in x.
        """
        found: dict[str, Origin] = {}
        with self._lock:
            for name, value in arguments.items():
                tensors = list(tensors_in((value,)))
                for number, tensor in enumerate(tensors):
                    key = f"{PARAMETER_PREFIX}{name}" + (f":{number}" if len(tensors) > 1 else "")
                    found[key] = self._makers.origin(tensor)
        return found

    @isolated_from_program
    def know_parameters(self, parameters: Iterable[Any]) -> None:
        """Note the parameters of a network, so that they are sources of inputs."""
        with self._lock:
            for parameter in parameters:
                if parameter.has_init:
                    continue  # not initialised yet, so it has no memory
                self._makers.add_parameter(parameter)

    # One operator.

    @isolated_from_program
    def _begin(self, call: Call, inputs: Sequence[tuple[str, Tensor]]) -> Opened | None:
        with self._lock:
            for _, tensor in inputs:
                self.gradients.follow(tensor)
            running = self.gradients.running
            if running is not None:
                self._tell_unseen(running, [tensor for _, tensor in inputs])
                running.read(tensor for _, tensor in inputs)
            place = self._place(call.name)
            origins = [self._makers.origin(tensor) for _, tensor in inputs]
            op = self._record(call.name, place, call.others())
            opened = Opened(op, call, place, inputs, origins)
            # Whether the operator is a view is known only from its results, so its inputs are then recorded afterwards.
            if not may_be_view(call.name) and not op.skip:
                self._recorder.before_op(op, self._inputs(op, inputs, origins))
        return opened

    @isolated_from_program
    def _ended(self, opened: Opened, outputs: Sequence[Tensor]) -> None:
        op, call, place, inputs, origins = opened
        with self._lock:
            reason = skip_reason(call, [tensor for _, tensor in inputs], outputs)
            self._enter_graph(op, inputs, origins, outputs, is_view=reason == "view")
            if reason:
                if not op.skip:
                    op = replace(op, skip=reason, arguments={**op.arguments, **self._seen_as(origins, outputs)})
                self._skip(op)
            elif op.skip:
                self._skip(op)
            else:
                if may_be_view(call.name):
                    self._recorder.before_op(op, self._inputs(op, inputs, origins))
                self._recorder.after_op(op, self._outputs(op, outputs))
                self._look_after(op, outputs)
            for slot, tensor in enumerate(outputs):
                if not reason:
                    self._makers.add(tensor, f"{op.op_name}:{slot}")
                if may_be_view(call.name):  # MindSpore copies the result before an operator reads it
                    self._makers.viewed(tensor)
            running = self.gradients.running
            # A view of a result that nothing dispatched wrote does not write it either.
            if running is not None and (not reason or any(origin.source for origin in origins)):
                running.wrote(outputs)
            forward = Forward(call.name, op.op_name, place.path, place.stack, place.is_marked)
            if is_read_again(call.name):
                self._read_again[op.op_name] = _Forward([tensor for _, tensor in inputs], outputs, op.arguments)
            self.gradients.ran(forward, outputs)

    def _seen_as(self, origins: Sequence[Origin], outputs: Sequence[Tensor]) -> dict[str, Any]:
        """What a view is a view of, and where its elements lie: a view has no record of its own, and may be a result."""
        place = self._makers.place(outputs[0]) if len(outputs) == 1 else None
        for origin in origins:
            if (
                place is not None
                and origin.memory is not None
                and origin.memory.storage == place.storage
                and origin.source
            ):
                shape = [int(size) for size in outputs[0].shape]
                seen = {"shape": shape, "offset": place.offset, "strides": list(place.strides)}
                return {"source": origin.source, "seen_as": seen}
        return {}

    @isolated_from_program
    def _failed(self, opened: Opened, error: Exception) -> None:
        with self._lock:
            op = opened.op
            if may_be_view(opened.call.name) and not op.skip:
                self._recorder.before_op(op, ())
            if not op.skip:
                self._recorder.failed_op(op, error, self._inputs(op, opened.inputs, opened.origins))

    # The backward.

    @isolated_from_program
    def _gradient_ran(self, node: RunningNode, computed: Sequence[Any]) -> None:
        with self._lock:
            found = unseen(node, computed)
            if found and node.forward.op_type != COMPILED:
                self._record_unseen(node, found)
            outer = self.gradients.running
            if outer is not None:
                outer.wrote(list(tensors_in(computed)))

    def _tell_unseen(self, node: RunningNode, inputs: Sequence[Tensor]) -> None:
        """If a backward operator reads tensors without a known maker, record the unseen operators that computed them."""
        op_type = node.forward.op_type
        if not argument_names(op_type) or node.is_recomputing(len(self.scopes.running)):
            return
        found = {place: tensor for place, tensor in enumerate(inputs) if not self._makers.knows(tensor)}
        if not computes_first(op_type):
            found = {place: tensor for place, tensor in found.items() if self._is_computed(tensor)}
        if found:
            self._record_unseen(node, found)
            node.wrote(found.values())

    def _is_computed(self, tensor: Tensor) -> bool:
        """Whether a tensor that no operator made can be a result: it is not a copy of a view, and not a constant."""
        if self._makers.copied_view(tensor) is not None:
            return False
        elements = host_tensor(tensor)
        return isinstance(elements, HostTensor) and has_several_values(elements)

    def _record_unseen(self, node: RunningNode, gradients: Mapping[int, Tensor]) -> None:
        for operator, outputs in operators_of(node.forward.op_type, gradients):
            self._record_gradient(node, operator, outputs)

    def _record_gradient(self, node: RunningNode, operator: UnseenOperator, outputs: Sequence[Tensor]) -> None:
        forward = node.forward
        name = self.names.name(operator.scope(forward.path, forward.op_type), operator.op_type)
        place = OperatorContext(name, "backward", forward.path, forward.stack, forward.op_name, forward.is_marked)
        of_forward = self._read_again.get(forward.op_name)
        arguments = {"seen": SEEN_BY_GRADIENTS, **_of_results(operator, node, outputs)}
        if of_forward is not None and operator.reads and len(node.given) == 1 and operator.given is not None:
            arguments |= _arguments_of_gradient(operator, of_forward)
            read = {slot: of_forward.tensor(name) for slot, name in operator.reads.items()}
            read[operator.given] = node.given[0]
            names = argument_names(operator.op_type)
            inputs = [(names[slot] if slot < len(names) else "", read[slot]) for slot in sorted(read)]
            self._file(self._record(operator.op_type, place, arguments), inputs, outputs)
            return
        inputs = [("dout", tensor) for tensor in node.given_to(operator)] if operator.given is not None else []
        self._file(self._record(operator.op_type, place, arguments), inputs, outputs, first=operator.given or 0)

    def _unseen_forward(self, op_type: str, result: Tensor | None) -> Forward:
        """Record a forward operator that was not dispatched, if its result is in new memory."""
        # Compiled code has a name such as `29_11_bprop_builder_27`. Its operators are recorded with its graph.
        if not op_type.isidentifier():
            return Forward(COMPILED, "", self.scopes.path, program_frames(), False)
        if result is None or self._makers.knows(result) or not result.nbytes:
            return Forward(op_type, "", self.scopes.path, program_frames(), self._is_marked())
        place = self._place(op_type)
        op = self._record(op_type, place, {"seen": SEEN_BY_RESULT})
        view = self._makers.copied_view(result)
        inputs = [] if view is None else [("input", view)]
        self._file(op, inputs, [result])
        return Forward(op_type, op.op_name, place.path, place.stack, place.is_marked)

    def _file(
        self,
        op: OpRecord,
        inputs: Sequence[tuple[str, Tensor]],
        outputs: Sequence[Tensor],
        first: int = 0,
    ) -> None:
        """Record an operator that has run. `first` is the slot of its first input."""
        origins = [self._makers.origin(tensor) for _, tensor in inputs]
        self._enter_graph(op, inputs, origins, outputs)
        if op.skip:
            self._skip(op)
        else:
            self._recorder.before_op(op, self._inputs(op, inputs, origins, first))
            self._recorder.after_op(op, self._outputs(op, outputs))
            self._look_after(op, outputs)
        for slot, tensor in enumerate(outputs):
            self._makers.add(tensor, f"{op.op_name}:{slot}")

    # The content of a record.

    def _place(self, op_type: str) -> OperatorContext:
        running = self.gradients.running
        depth = len(self.scopes.running)
        if running is not None and not running.is_recomputing(depth):
            forward = running.forward
            name = self.names.name(gradient_scope(forward.path, forward.op_type), op_type)
            return OperatorContext(name, "backward", forward.path, forward.stack, forward.op_name, forward.is_marked)
        if running is None and self.is_backward:
            return OperatorContext(
                self.names.name(gradient_scope(), op_type), "backward", "", program_frames(), "", False
            )
        path, again = self.scopes.path, running is not None
        name = self.names.name(forward_scope(path), op_type, again=again)
        phase: Phase = "recomputation" if again else "forward"
        return OperatorContext(name, phase, path, program_frames(), "", self._is_marked())

    @property
    def is_backward(self) -> bool:
        """Whether the backward pass is running in this thread."""
        return bool(getattr(self._here, "backward", False))

    @is_backward.setter
    def is_backward(self, value: bool) -> None:
        self._here.backward = value

    def _is_marked(self) -> bool:
        return self._marks is not None and self._marks.takes(self.scopes.cells())

    def _record(self, op_type: str, place: OperatorContext, arguments: Mapping[str, Any]) -> OpRecord:
        selected = (
            place.is_marked
            if self._marks is not None
            else self._chooses_later or self._selection.selects(place.name, op_type)
        )
        op = OpRecord(
            op_type=op_type,
            op_name=place.name,
            timestamp=self._emitter.timestamp(),
            step=self._step(),
            net_name=self._net_name,
            graph_id=PYNATIVE,
            rank_id=self._rank_id,
            task_id=self._unknown_id,
            stream_id=self._unknown_id,
            order=self._next_order(),
            occurrence=self.names.occurrence(place.name),
            phase=place.phase,
            kernel=kernel_of(op_type),
            forward_op=place.forward_op,
            stack=place.stack,
            arguments=arguments,
            skip="" if selected else "not selected",
        )
        return op if self._models is None else self._models.placed(op, inside=self._is_in_model())

    def _look_after(self, op: OpRecord, outputs: Sequence[Tensor]) -> None:
        if self._watches is not None:
            self._watches.ran(op, [(slot, "", tensor) for slot, tensor in enumerate(outputs)], collective=False)

    def _skip(self, op: OpRecord) -> None:
        if self._emitter.lists(PYNATIVE, op.op_name):
            self._recorder.skip_op(op)
        else:
            self._recorder.count_op(op.skip)

    def _inputs(
        self, op: OpRecord, inputs: Sequence[tuple[str, Tensor]], origins: Sequence[Origin], first: int = 0
    ) -> Sequence[LiveTensor]:
        if not self._selection.wants_inputs:
            return []
        found = [
            live_tensor(slot, argument, _placed(tensor, origin.memory), origin.source)
            for slot, ((argument, tensor), origin) in enumerate(zip(inputs, origins, strict=True), start=first)
        ]
        return found if self._models is None else self._models.without_excluded(op, "input", found)

    def _outputs(self, op: OpRecord, outputs: Sequence[Tensor]) -> Sequence[LiveTensor]:
        if not self._selection.wants_outputs:
            return []
        found = [
            live_tensor(slot, "", _placed(tensor, self._makers.place(tensor))) for slot, tensor in enumerate(outputs)
        ]
        return found if self._models is None else self._models.without_excluded(op, "output", found)

    def _enter_graph(
        self,
        op: OpRecord,
        inputs: Sequence[tuple[str, Tensor]],
        origins: Sequence[Origin],
        outputs: Sequence[Tensor],
        *,
        is_view: bool = False,
    ) -> None:
        graph = self._recorder.graph(PYNATIVE)
        if op.op_name in graph:
            return
        read = []
        for (_, tensor), (source, _) in zip(inputs, origins, strict=True):
            dtype, shape = str(tensor.dtype).lower(), tuple(tensor.shape)
            read.append(GraphInput(source, dtype, shape))
            if source.startswith("Parameter."):
                graph.add_parameter(GraphValue(source.removeprefix("Parameter."), dtype, shape))
        wrote = tuple(GraphOutput(str(tensor.dtype).lower(), tuple(tensor.shape)) for tensor in outputs)
        graph.add(
            GraphNode(
                op_name=op.op_name,
                op_type=op.op_type,
                phase=op.phase,
                inputs=tuple(read),
                outputs=wrote,
                attributes=op.arguments,
                stack=op.stack,
                runs_kernel=not is_view,
            )
        )


def _look(tensor: Tensor) -> Look:
    """A function that keeps a tensor alive and returns its current elements."""
    return lambda: host_tensor(tensor)


def _placed(tensor: Tensor, memory: Memory | None) -> HostTensor | str:
    """The current elements of a tensor, with their location."""
    found = host_tensor(tensor)
    if isinstance(found, HostTensor):
        found.memory = memory
    return found


# Properties of operators: whether one is a view, and the names of its arguments.

_VIEWS: Final = frozenset(
    {
        *(
            "AsStrided",
            "BroadcastTo",
            "Chunk",
            "Diagonal",
            "ExpandDims",
            "Imag",
            "Narrow",
            "Real",
            "Reshape",
            "Select",
            "SelectExt",
        ),
        *(
            "Slice",
            "SliceExt",
            "Split",
            "SplitTensor",
            "SplitWithSize",
            "Squeeze",
            "StridedSlice",
            "Transpose",
            "TransposeExt",
        ),
        *("Unstack", "UnstackExt", "View", "ViewAs"),
    }
)
"""Operators that may return a view of their input. The name may also end with `View`."""
_LONGEST: Final = 200
_DEEPEST: Final = 3


class Call(NamedTuple):
    """A dispatched call of an operator.

    `arguments` are in the order of the definition. `is_primitive`: the call came with a Primitive object; the gradient of such an operator
    is not dispatched.
    """

    name: str
    arguments: Sequence[Any]
    primitive: Any

    @property
    def is_primitive(self) -> bool:
        return self.primitive is not None

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...]) -> Call:
        # MindSpore dispatches Primitives as (primitive, name, arguments).
        if len(args) == 3 and isinstance(args[1], str) and isinstance(args[2], tuple):
            return cls(name, args[2], args[0])
        return cls(name, args, None)

    @property
    def is_pseudo(self) -> bool:
        """Whether the call only asks for a type and runs nothing. Such names begin in lower case."""
        return self.name[:1].islower()

    def tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors that the operator reads, with the names of their arguments."""
        names = self._names()
        found = []
        for place, value in enumerate(self.arguments):
            name = names[place] if place < len(names) else ""
            is_list = bool(name) and isinstance(value, tuple | list)
            found += [
                (f"{name}[{number}]" if is_list else name, tensor) for number, tensor in enumerate(tensors_in((value,)))
            ]
        return found

    def others(self) -> dict[str, Any]:
        """The arguments without tensors, by name, as JSON values."""
        names = self._names()
        found = {}
        if self.primitive is not None:
            skip = {"input_names", "output_names"}
            found = {key: _json(value) for key, value in _attributes(self.primitive).items() if key not in skip}
        for place, value in enumerate(self.arguments):
            if value is not None and not any(True for _ in tensors_in((value,))):
                found[names[place] if place < len(names) else str(place)] = _json(value)
        return found

    def _names(self) -> Sequence[str]:
        names = argument_names(self.name)
        written = () if self.primitive is None or names else _attributes(self.primitive).get("input_names")
        return [str(name) for name in written] if isinstance(written, list | tuple) and written else names


def skip_reason(call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> SkipReason:
    """`view` if all results are in the memory of inputs, otherwise empty."""
    if call.name.removesuffix("View") not in _VIEWS or not inputs or not outputs:
        return ""
    memory = {storage_of(tensor) for tensor in inputs}
    return "view" if all(storage_of(tensor) in memory for tensor in outputs) else ""


def may_be_view(name: str) -> bool:
    return name.removesuffix("View") in _VIEWS


def _attributes(primitive: Any) -> Mapping[str, Any]:
    found = getattr(primitive, "attrs", None)
    return found if isinstance(found, dict) else {}


def _json(value: Any, depth: int = 0) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, tuple | list) and depth < _DEEPEST:
        return [_json(each, depth + 1) for each in value]
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


# Keeps opdump's dispatch mode in its place among the modes of a program.
#
# MindSpore has a stack of modes in each thread, and leaving a mode pops the top of the stack. opdump enters and leaves its mode when steps
# begin and end, in the middle of `with` blocks of the program, so it must restore the modes above its own.
#
# While its pipeline is on, MindSpore passes operators to a thread of its own, which has no modes, so they are not dispatched. Therefore the
# pipeline is off while the mode is on.

Dispatched = Callable[[Any, tuple[Any, ...], Any], Any]


class RecordingMode(MsDispatchMode):  # type: ignore[misc]  # MindSpore is not installed where this is checked
    """Passes every operator of its thread to a function."""

    def __init__(self, dispatched: Dispatched) -> None:
        self._dispatched = dispatched

    def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
        return self._dispatched(func, args, kwargs)


class ModeStack:
    """Enters and leaves a recording mode in any thread, also between modes of the program."""

    def __init__(self, dispatched: Dispatched) -> None:
        self._mode = RecordingMode(dispatched)
        self._here = threading.local()
        self._replacements = Replacements()
        self._entered = 0
        self._has_disabled = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Track the modes that the program enters and leaves from now on."""
        enter, leave = MsDispatchMode.__enter__, MsDispatchMode.__exit__
        known = self._known

        @functools.wraps(enter)
        def entering(mode: Any) -> Any:
            found = enter(mode)
            known().append(mode)
            return found

        @functools.wraps(leave)
        def leaving(mode: Any, *error: Any) -> Any:
            above = self._take_above(mode)
            found = leave(mode, *error)
            self._put(above)
            return found

        self._replacements.replace(MsDispatchMode, "__enter__", entering)
        self._replacements.replace(MsDispatchMode, "__exit__", leaving)

    def close(self) -> None:
        self.leave()
        self._replacements.restore()

    def forget(self) -> None:
        """Stop tracking in a forked process. Modes that are on stay on."""
        self._replacements.restore()

    @property
    def is_entered(self) -> bool:
        """Whether this thread has the recording mode on."""
        return self._mode in self._known()

    def enter(self) -> None:
        if not self.is_entered:
            self._put([self._mode])
            self._count(+1)

    def leave(self) -> None:
        if self.is_entered:
            above = self._take_above(self._mode)
            _DispatchGuardStack.pop()
            self._put(above)
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._entered += change
            if self._entered == 1 and change > 0:
                self._has_disabled = not _pynative_executor.disable_frontend_and_bprop_pipeline()
            elif not self._entered and self._has_disabled:
                _pynative_executor.enable_frontend_and_bprop_pipeline()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The mode is on in the block, in which a thread of the program does its work."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def _known(self) -> list[Any]:
        """The modes of this thread that were entered since `open`, outermost first."""
        modes: list[Any] | None = getattr(self._here, "modes", None)
        if modes is None:
            modes = self._here.modes = []
        return modes

    def _take_above(self, mode: Any) -> list[Any]:
        """Pop the modes above a mode, and forget the mode itself. A mode that is not known was entered before `open`, below all known ones."""
        modes = self._known()
        place = next((place for place in reversed(range(len(modes))) if modes[place] is mode), None)
        above = modes[:] if place is None else modes[place + 1 :]
        del modes[0 if place is None else place :]
        for _ in above:
            _DispatchGuardStack.pop()
        return above

    def _put(self, modes: list[Any]) -> None:
        for mode in modes:
            _DispatchGuardStack.push(mode)
        self._known().extend(modes)
