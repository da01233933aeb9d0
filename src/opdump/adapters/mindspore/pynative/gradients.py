"""Observes the backward pass through the nodes of MindSpore's autograd.

Each node is the gradient of one forward operator, and has hooks before and after it runs. Operators that are dispatched in between belong
to the node. Gradients that none of them wrote were computed by operators that MindSpore does not dispatch.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mindspore import Tensor

from opdump.adapters.mindspore.pynative.naming import gradient_scope
from opdump.adapters.mindspore.pynative.tensors import storage_of, tensors_in
from opdump.records import Frame

_MOST_WAITING: Final = 4096
"""Maximum number of forward operators whose node is not known yet. For most it becomes known at the next operator."""


class Part(NamedTuple):
    """Where the elements of a part of a tensor lie in it, by shape, offset and strides; `of` is the shape of the whole tensor."""

    of: Sequence[int]
    shape: Sequence[int]
    offset: int
    strides: Sequence[int]


@dataclass(slots=True, eq=False)
class Forward:
    """The facts of a forward operator that its gradient needs. `op_name` is empty if it is not recorded, such as a view by an index."""

    op_type: str
    op_name: str
    path: str
    stack: Sequence[Frame]
    is_marked: bool = False
    is_linked: bool = False
    """Whether its node is known."""
    part: Part | None = None
    """For an index of a tensor, what it takes."""


@dataclass(slots=True, eq=False)
class RunningNode:
    """A node that is computing its gradient."""

    forward: Forward
    given: tuple[Tensor, ...]
    """The gradients of its outputs."""
    depth: int
    """The number of running calls of Cells when it began."""
    written: set[int] = field(default_factory=set)
    """The memory that operators wrote since then."""
    left: dict[int, Tensor] = field(default_factory=dict)
    """The tensors in that memory that no operator has read yet."""

    def wrote(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.written.add(storage_of(tensor))
            self.left[storage_of(tensor)] = tensor

    def read(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.left.pop(storage_of(tensor), None)

    def given_to(self, operator: UnseenOperator) -> list[Tensor]:
        """What an operator reads that MindSpore does not dispatch: what the operators before it have left, or else the gradients. One that is known by
        name reads only one of these.
        """
        left = list(self.left.values())
        return (left if operator.is_guessed else left[-1:]) or list(self.given)

    def is_recomputing(self, depth: int) -> bool:
        """Whether the node is running the forward pass again. `depth` is the current number of running calls of Cells."""
        return depth > self.depth


Ended = Callable[[RunningNode, Sequence[Any]], None]


class Gradients:
    """Hooks autograd nodes. `ended` is called after each with the gradients that it computed; None for inputs without a gradient.

    `unseen` is called with the type of a forward operator that was not dispatched, and with its result or None.
    """

    def __init__(self, ended: Ended, unseen: Callable[[str, Tensor | None], Forward], depth: Callable[[], int]) -> None:
        self._ended = ended
        self._unseen = unseen
        self._depth = depth
        self._here = threading.local()
        self._followed: dict[int, weakref.ref[Any]] = {}
        """The hook of each node, by the node's id. A hook dies with its node; another node may then get the id."""
        self._waiting: OrderedDict[tuple[int, tuple[int, ...]], Forward] = OrderedDict()
        """Forward operators whose node is not known yet, by address and shape of an output."""
        self.is_open = True

    @property
    def running(self) -> RunningNode | None:
        """The node that runs in this thread."""
        nodes = self._nodes
        return nodes[-1] if nodes else None

    @property
    def _nodes(self) -> list[RunningNode]:
        found: list[RunningNode] | None = getattr(self._here, "nodes", None)
        if found is None:
            found = self._here.nodes = []
        return found

    def ran(self, forward: Forward, outputs: Iterable[Tensor]) -> None:
        """Note that a forward operator has run. Its node may become known only later."""
        for tensor in outputs:
            key = (int(tensor.data_ptr()), tuple(tensor.shape))
            self._waiting.pop(key, None)
            self._waiting[key] = forward
            self.follow(tensor)
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def follow(self, tensor: Tensor) -> None:
        """Hook the node of a tensor, and the nodes before it that are not hooked yet."""
        node = tensor._grad_node
        if node is None or node.is_leaf() or self._is_followed(node):
            return
        forward = self._waiting.pop((int(tensor.data_ptr()), tuple(tensor.shape)), None)
        if forward is not None and forward.op_type != node.name():
            forward = None
        self._hook(node, forward or self._latest(node.name(), tensor))

    def clear(self) -> None:
        """Forget the step, which has ended."""
        self._followed.clear()
        self._waiting.clear()

    def _is_followed(self, node: Any) -> bool:
        hook = self._followed.get(node._unique_id())
        return hook is not None and hook() is not None

    def _hook(self, node: Any, forward: Forward) -> None:
        pending: list[tuple[Any, Forward | None]] = [(node, forward)]
        while pending:
            node, known = pending.pop()
            if self._is_followed(node):
                continue
            forward = known or self._latest(node.name())
            forward.is_linked = True
            self._register(node, forward)
            pending += [
                (before, None) for before, _ in node.next_functions if before is not None and not before.is_leaf()
            ]

    def _latest(self, name: str, result: Tensor | None = None) -> Forward:
        """The latest forward operator of this type without a node; if there is none, or the node's `result` is known, an unseen one."""
        waiting = reversed(self._waiting.items()) if result is None else ()
        key = next((key for key, each in waiting if each.op_type == name and not each.is_linked), None)
        return self._unseen(name, result) if key is None else self._waiting.pop(key)

    def _register(self, node: Any, forward: Forward) -> None:
        def begins(given: Any) -> None:
            if self.is_open:
                self._nodes.append(RunningNode(forward, tuple(tensors_in(given)), self._depth()))

        def ends(computed: Any, _: Any) -> None:
            nodes = self._nodes
            if nodes and nodes[-1].forward is forward:
                running = nodes.pop()
                if self.is_open:
                    self._ended(running, computed)

        node.register_prehook(begins)
        node.register_hook(ends)
        self._followed[node._unique_id()] = weakref.ref(begins)


def unseen(node: RunningNode, computed: Sequence[Any]) -> dict[int, Tensor]:
    """The gradients of a node, by position, that no dispatched operator wrote and that are not its incoming gradients."""
    known = node.written | {storage_of(tensor) for tensor in node.given}
    found: dict[int, Tensor] = {}
    for place, tensor in enumerate(computed):
        if isinstance(tensor, Tensor) and tensor.nbytes and storage_of(tensor) not in known:
            known.add(storage_of(tensor))
            found[place] = tensor
    return found


# A table of backward operators that MindSpore does not dispatch, by the forward operator whose gradients they compute.
#
# Autograd hooks see only their incoming and outgoing gradients. Their names are from the log of MindSpore 2.10 (`GLOG_v=1`, `Run Op cache
# miss`). The gradient of a forward operator that is not in the table is named after it: `Grad_{type}`.


_GUESSED: Final = "Grad_"


class UnseenOperator(NamedTuple):
    """An operator of the backward pass. `given` is the slot in which it reads the gradient of the forward result; None if it does not
    read it. `results` are the inputs of the forward operator whose gradients it computes; empty for all that remain. `reads` are the tensors of the
    forward operator that it reads, by slot: `x0` is its first input, `y1` its second output. Empty if they are not known.
    """

    op_type: str
    given: int | None = 0
    results: tuple[int, ...] = ()
    reads: Mapping[int, str] = MappingProxyType({})

    @property
    def is_guessed(self) -> bool:
        """Whether the type of the operator is unknown, and it is named after the forward operator."""
        return self.op_type.startswith(_GUESSED)

    def scope(self, path: str, forward_type: str) -> str:
        """The operator's scope in a compiled network. If its type is unknown, the type already names the forward operator, and the scope does not."""
        return gradient_scope(path, "" if self.is_guessed else forward_type)


_OPERATORS: Final[Mapping[str, tuple[UnseenOperator, ...]]] = {
    "AdaptiveAvgPool2D": (UnseenOperator("AdaptiveAvgPool2DGrad"),),
    "AvgPool": (UnseenOperator("AvgPoolGrad", 2),),
    "BCEWithLogitsLoss": (UnseenOperator("BinaryCrossEntropyWithLogitsBackward"),),
    "BatchNorm": (UnseenOperator("BatchNormGrad", reads={1: "x0", 2: "x1", 3: "y3", 4: "y4", 5: "y2"}),),
    "BiasAdd": (UnseenOperator("BiasAddGrad", 0, (1,)),),
    "Conv2D": (
        UnseenOperator("Conv2DBackpropInput", 0, (0,), reads={1: "x1"}),
        UnseenOperator("Conv2DBackpropFilter", 0, (1,), reads={1: "x0"}),
    ),
    "Conv2DTranspose": (UnseenOperator("Conv2D", 0, (0,)), UnseenOperator("Conv2DBackpropFilter", 1, (1,))),
    "Conv3D": (UnseenOperator("Conv3DBackpropInput", 1, (0,)), UnseenOperator("Conv3DBackpropFilter", 1, (1,))),
    "Dropout": (UnseenOperator("DropoutGrad"),),
    "Elu": (UnseenOperator("EluGrad"),),
    "Gather": (UnseenOperator("UnsortedSegmentSum", reads={1: "x1"}),),
    "LSTM": (UnseenOperator("LSTMGrad", 3),),
    "LayerNorm": (UnseenOperator("LayerNormGrad", 1, reads={0: "x0", 2: "y2", 3: "y1", 4: "x1"}),),
    "MaxPool": (UnseenOperator("MaxPoolGrad", 2, reads={0: "x0", 1: "y0"}),),
    "MaxPool3D": (UnseenOperator("MaxPool3DGrad", 2),),
    "ReLU6": (UnseenOperator("ReLU6Grad"),),
    "Rsqrt": (UnseenOperator("RsqrtGrad", 1, reads={0: "y0"}),),
    "ReduceMean": (UnseenOperator("RealDiv"),),
    "ResizeBilinearV2": (UnseenOperator("ResizeBilinearGrad"),),
    "SelectView": (UnseenOperator("UnsortedSegmentSum"),),
    "Softmax": (UnseenOperator("SoftmaxBackward", reads={1: "y0"}),),
    "Softplus": (UnseenOperator("SoftplusGrad", reads={1: "x0"}),),
    "SparseSoftmaxCrossEntropyWithLogits": (UnseenOperator("SparseSoftmaxCrossEntropyWithLogits", None),),
    "Stack": (UnseenOperator("Unstack"),),
    "StridedSlice": (UnseenOperator("StridedSliceGrad"),),
}


def is_read_again(forward_type: str) -> bool:
    """Whether an operator of the backward pass that MindSpore does not dispatch is known to read tensors of this forward operator."""
    return any(operator.reads for operator in _OPERATORS.get(forward_type, ()))


def computes_first(forward_type: str) -> bool:
    """Whether an unseen operator computes a value from which dispatched operators then make the gradient."""
    return any(operator.given is None for operator in _OPERATORS.get(forward_type, ()))


def operators_of(forward_type: str, gradients: Mapping[int, Any]) -> Sequence[tuple[UnseenOperator, list[Any]]]:
    """The operators that computed these gradients, and the results of each. `gradients` are by input of the forward operator."""
    left = dict(gradients)
    found = []
    for operator in (*_OPERATORS.get(forward_type, ()), _unknown(forward_type)):
        results = [left.pop(place) for place in (operator.results or sorted(left)) if place in left]
        if results:
            found.append((operator, results))
    return found


def _unknown(forward_type: str) -> UnseenOperator:
    return UnseenOperator(_GUESSED + forward_type)
