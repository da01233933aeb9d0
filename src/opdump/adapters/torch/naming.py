"""Names operators: finds where in the program each one runs, numbers it there, encodes its arguments, and decides whether it is selected."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import time_ns
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import is_grad_enabled, nn

from opdump.adapters.models import Models
from opdump.adapters.torch.private_names import (
    WRAPPED,
    WRAPPED_BY_OTHERS,
    autograd_node,
    children_of,
    graph_task,
    number_of,
    sequence_number,
)
from opdump.adapters.torch.schemas import OperatorSchema, nested_tensors
from opdump.adapters.torch.scopes import WRAPPERS, DumpSelection, Position, RootScopes, Spot, compiled_original
from opdump.adapters.torch.stacks import StackReader, is_recomputing
from opdump.adapters.torch.training import TrainingObserver
from opdump.interpreter.frames import calling_frame
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from opdump.records import Frame, OpRecord, Phase

# Stable full names for operators: the same place in the program has the same name in every step.
#
# A name is a scope and `{op_type}-op{id}`. Ids are unique in a graph, so the last component identifies an operator there. An
# operator is identified by its scope, type and line, and by its position among operators with the same ones within one call
# of the root module, one `optimizer.step`, or one backward. So gradient accumulation and repeated calls repeat names, and
# `occurrence` counts the repetitions within a step.

GRADIENTS = "Gradients/"


@dataclass(slots=True, eq=False)
class Site:
    """A place in the program that runs an operator, with what is the same each time."""

    name: str
    step: int = -1
    """The serial number of the step to which `occurrences` applies."""
    occurrences: int = 0
    selected: bool | None = None
    """Whether the plan's `kernels` select it; None until determined."""
    described: bool = False
    """Whether it is in the graph."""
    raw_arguments: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    link: Any = None
    """What its gradient inherits; the owner of the sites sets and reads it."""

    def source(self, slot: int) -> str:
        """The source name of an output, `{name}:{slot}`."""
        sources = self.sources
        if slot >= len(sources):
            sources.extend(f"{self.name}:{number}" for number in range(len(sources), slot + 1))
        return sources[slot]

    def next_occurrence(self, step: int) -> int:
        """Count this execution; return how many came before it in this step."""
        if self.step != step:
            self.step = step
            self.occurrences = 0
        self.occurrences += 1
        return self.occurrences - 1


@dataclass(slots=True, eq=False)
class _Alike:
    """The sites of operators that differ only in position, and the next position in each call of this step."""

    sites: list[Site] = field(default_factory=list)
    step: int = -1
    call: object = None
    position: int = 0
    """The next position in `call`."""
    others: dict[object, int] = field(default_factory=dict)
    """The next positions in other calls, which may continue."""

    def next_position(self, step: int, call: object) -> int:
        if self.step != step:
            self.step = step
            self.call, self.position = call, 0
            self.others.clear()
        elif self.call != call:  # calls alternate, for example in two threads
            self.others[self.call] = self.position
            self.call, self.position = call, self.others.get(call, 0)
        self.position += 1
        return self.position - 1


class Sites:
    """Finds the site of each operator. Ids count per graph. `step` is a serial number that increases with each step."""

    def __init__(self) -> None:
        self.step = 0
        self._alike: dict[tuple[object, ...], _Alike] = {}
        self._values: dict[tuple[int, str], Site] = {}
        self._ids: dict[int, int] = {}

    def next(self, graph_id: int, scope: str, op_type: str, call: object, phase: str, place: object) -> Site:
        """The site of the next operator of this kind in this scope.

        `call` identifies the running call (root module, optimizer, backward); positions count from 0 in each.
        `place` distinguishes operators within a scope and phase: the line of the program, or the forward operator of a
        backward operator.
        """
        key = (graph_id, scope, op_type, phase, place)
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = _Alike()
        position = alike.next_position(self.step, call)
        if position == len(alike.sites):
            number = self._ids.get(graph_id, 0)
            self._ids[graph_id] = number + 1
            alike.sites.append(Site(f"{scope}/{op_type}-op{number}"))
        return alike.sites[position]

    def value(self, graph_id: int, name: str) -> Site:
        """The site of a named value: a parameter, an input of a network."""
        key = (graph_id, name)
        site = self._values.get(key)
        if site is None:
            site = self._values[key] = Site(name)
        return site

    def next_step(self) -> None:
        """Restart the counts of positions and occurrences; names stay."""
        self.step += 1


# Lists the names by which a configuration may select an operator.
#
#     Default/network-LeNet/conv1-Conv2d/convolution-op0    its full name
#     convolution-op0                                       the last component
#     Default/network-LeNet/conv1-Conv2d                    the scope of a module: every operator that ran in it
#     conv1                                                 the same module as `named_modules()` spells it
#
# The first two names select one operator. The name of a module also selects the operators of its submodules and of its
# gradients. A module that was called as one operator (`dump_level` op) has the names of the module.
#
# A module that is registered in two places has both names. The component that a wrapper adds (`module.` of
# DistributedDataParallel, `_orig_mod.` of torch.compile, those of FSDP and of checkpoints) is optional.

_ROOT = 2
"""Components above the modules of a network: `Default/network-LeNet`."""
_ADDED = WRAPPED_BY_OTHERS | {WRAPPED}
"""The attribute in which a wrapper keeps the wrapped module."""
_MOST_PATHS = 200_000
"""Limits the search: if shared modules contain shared modules, the number of paths grows exponentially."""


class OperatorNames:
    """Collects the paths of the modules of the networks that ran."""

    def __init__(self) -> None:
        self._paths: dict[str, set[str]] = {}
        """Paths of modules, by scope."""
        self._roots: dict[int, tuple[weakref.ref[nn.Module], RootScopes, int]] = {}
        """Networks, with the number of modules that each had when its paths were read."""
        self._names: dict[str, frozenset[str]] = {}

    def learn(self, root: nn.Module, scopes: RootScopes) -> None:
        """Read the modules of a network that is called, the first time and when modules were added since."""
        known = self._roots.get(id(scopes))
        if known is not None and known[2] == len(scopes.registered):
            return
        self._roots[id(scopes)] = (weakref.ref(root), scopes, len(scopes.registered))
        self._names.clear()
        for module, path in _all_paths(root):
            scope = scopes.registered.get(id(module)) or scopes.registered.get(id(compiled_original(module)))
            if scope is not None and path:
                self._paths.setdefault(scope, set()).update(path)

    def of(self, op_name: str) -> frozenset[str]:
        """Every name that selects the operator with this full name."""
        names = self._names.get(op_name)
        if names is None:
            for reference, scopes, _ in list(self._roots.values()):
                root = reference()
                if root is not None:
                    self.learn(root, scopes)  # modules may have been added during this call
            names = self._names[op_name] = self._read(op_name)
        return names

    def _read(self, op_name: str) -> frozenset[str]:
        own = op_name.removeprefix(GRADIENTS)
        last = own.rpartition("/")[2]
        names = {op_name, last, op_name.rpartition("/")[0]}
        parts = own.split("/")
        deepest = len(parts) if own in self._paths else len(parts) - 1
        for end in range(min(_ROOT, deepest), deepest + 1):
            above = "/".join(parts[:end])
            names.add(above)
            names.update(self._paths.get(above) or _spelled(parts[_ROOT:end]))
        names.discard("")
        return frozenset(names)


def _spelled(parts: list[str]) -> Iterator[str]:
    """The path of an unregistered module, from its scope: a component is `conv1-Conv2d` or just `conv1`."""
    if parts:
        yield ".".join(part.rpartition("-")[0] or part for part in parts)


def _all_paths(root: nn.Module) -> Iterator[tuple[nn.Module, set[str]]]:
    """Every module below `root`, once per place of registration, with the spellings of that place."""
    original = compiled_original(root)
    first = {""} if original is root else {"", WRAPPED}
    pending: list[tuple[nn.Module, set[str], tuple[int, ...]]] = [(original, first, (id(original),))]
    number = 0
    while pending and number < _MOST_PATHS:
        module, paths, above = pending.pop()
        number += 1
        yield module, paths - {"", WRAPPED}
        is_wrapper = type(module).__name__ in WRAPPERS
        for name, child in reversed(list(children_of(module).items())):
            if child is None or id(child) in above:
                continue
            spelled = {f"{path}.{name}" if path else name for path in paths}
            if name in _ADDED or (is_wrapper and name == "module"):
                spelled |= paths
            pending.append((child, spelled, (*above, id(child))))


# Encodes non-tensor arguments as JSON values, exactly enough to replay the operator.

COMPARABLE = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        list,
        tuple,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
"""Argument classes that can be compared; lists and tuples only if all their elements can."""

_NO_ARGUMENTS: Mapping[str, Any] = {}


def json_value(value: Any) -> Any:
    """A JSON value for an argument of an operator.

    dtype, layout, device and memory format become their torch spelling. NaN and infinities, which JSON lacks, become
    `{"float": "nan"}`, and complex numbers `{"complex": [re, im]}`. Anything else, such as a generator, becomes its class name.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if isinstance(value, (float, torch.SymFloat)):
        number = float(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if isinstance(value, complex):
        return {"complex": [json_value(value.real), json_value(value.imag)]}
    if isinstance(value, (torch.dtype, torch.layout, torch.device, torch.memory_format)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [json_value(element) for element in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(element) for key, element in value.items()}
    return f"<{type(value).__name__}>"


def arguments_of(
    site: Site, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The non-tensor arguments as JSON values; the same object as last time if they are unchanged.

    They include numbers passed in place of tensors, such as `other` in `x + 1`.
    """
    raw = schema.others_among(args, kwargs)
    numbers = schema.numbers_among(args, kwargs)
    if numbers:
        raw = (*raw, *chain.from_iterable(numbers))
    elif not raw:
        return _NO_ARGUMENTS
    # 1, 1.0 and True are equal but different arguments, and so are 0.0 and -0.0.
    kinds = tuple([math.copysign(1.0, each) if each.__class__ is float and not each else type(each) for each in raw])
    if site.raw_arguments != (kinds, raw):
        given = len(args)
        site.arguments = {
            argument: json_value(value)
            for index, argument in schema.others
            if index < given or argument in kwargs
            for value in (args[index] if index < given else kwargs[argument],)
        }
        for argument, value in numbers:
            site.arguments[argument] = json_value(value)
        # None never equals the pair above, so arguments that cannot be compared are encoded each time.
        site.raw_arguments = (kinds, raw) if _are_comparable(raw) else None
    return site.arguments


def _are_comparable(values: Iterable[Any]) -> bool:
    return all(
        value.__class__ in COMPARABLE and (value.__class__ not in (list, tuple) or _are_comparable(value))
        for value in values
    )


# Finds the forward operator that an autograd node belongs to.
#
# Autograd numbers its nodes per thread, and makes the node of an operator before it dispatches the operator. So the numbers that are new
# since the last operator belong to the operator being dispatched. The exception is `CopySlices`, the node of a write through a view: it is
# made after the operator, so it belongs to the last one.
#
# A graph may outlive its step (a GAN makes its images before the discriminator's step ends the iteration), so the links of the previous
# step are kept, too.

_MOST_NODES = 16
"""The maximum number of nodes that one operator makes. If more are new, operators ran unrecorded, and only the last node is linked."""


class _Named(Protocol):
    @property
    def op_name(self) -> str: ...


_Linked = TypeVar("_Linked", bound=_Named)


@dataclass(slots=True, eq=False)
class _Nodes(Generic[_Linked]):
    """The nodes that one thread made, by their number: the operators before and after the node was made."""

    listed: bool = False  # in `ForwardLinks._threads`
    found_for: tuple[int, int] | None = None
    """Task and number of the last node looked up. Cached, because most nodes run several operators."""
    found: _Linked | None = None
    recent: dict[int, tuple[_Linked | None, _Linked]] = field(default_factory=dict)
    earlier: dict[int, tuple[_Linked | None, _Linked]] = field(default_factory=dict)
    last: int = -1
    link: _Linked | None = None

    def get(self, sequence: int, copies: bool) -> _Linked | None:
        pair = self.recent.get(sequence) or self.earlier.get(sequence)
        if pair is not None:
            return pair[0] if copies else pair[1]
        return self.link if copies and 0 <= self.last <= sequence else None


class ForwardLinks(Generic[_Linked]):
    """Links from autograd nodes to the forward operators whose gradients they compute."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._threads: dict[int, _Nodes[_Linked]] = {}

    def begins(self, link: _Linked | None) -> None:
        """Call this for each operator that autograd may have made nodes for, when it is dispatched. None: not to be linked."""
        if link is None:
            return
        nodes = self.mine()
        sequence = sequence_number()
        last = nodes.last
        if sequence != last:
            before = nodes.link
            if last < 0 or sequence - last > _MOST_NODES:
                last, before = sequence - 1, None
            nodes.last = sequence
            for number in range(last, sequence):
                nodes.recent[number] = (before, link)
        nodes.link = link

    def made(self, first: int, link: _Linked) -> None:
        """Link all nodes of this thread from number `first` on to an operator that ran above autograd."""
        nodes = self.mine()
        nodes.last = sequence_number()
        nodes.link = link
        for number in range(first, nodes.last):
            nodes.recent[number] = (link, link)

    def find(self, node: torch.autograd.graph.Node, task: int) -> _Linked | None:
        """The operator that `node` belongs to; None if the node was made while nothing was recorded.

        `task` is the number of the running backward.
        """
        sequence = number_of(node)
        mine = self.mine()
        copies = type(node).__name__ == "CopySlices"
        if len(self._threads) == 1:
            # One thread made all nodes, so the number identifies the node.
            asked = (task, sequence)
            if mine.found_for != asked:
                mine.found_for, mine.found = asked, mine.get(sequence, copies)
            return mine.found
        name = node.name().rpartition("::")[2]
        found = [mine.get(sequence, copies)]
        found += [nodes.get(sequence, copies) for nodes in list(self._threads.values()) if nodes is not mine]
        links = [link for link in found if link is not None]
        if len(links) > 1:
            # Several threads have a node with this number. Prefer operators whose name fits the node's, then the calling thread's.
            stem = name.partition("Backward")[0].lower()
            links = [link for link in links if _stem(link.op_name).startswith(stem)] or links
        return links[0] if links else None

    def next_step(self) -> None:
        """Keep the links of the ending step for one more step."""
        for ident, nodes in list(self._threads.items()):
            if nodes.recent:
                nodes.earlier, nodes.recent = nodes.recent, {}
            elif not nodes.earlier or ident != threading.get_ident():
                self._threads.pop(ident, None)
                nodes.listed = False
            nodes.last, nodes.link = -1, None
            nodes.found_for, nodes.found = None, None

    @property
    def has_several_threads(self) -> bool:
        """Whether several threads made nodes. If so, a number does not identify a node."""
        return len(self._threads) > 1

    def mine(self) -> _Nodes[_Linked]:
        """The nodes of the calling thread."""
        try:
            nodes: _Nodes[_Linked] = self._local.nodes
        except AttributeError:
            nodes = self._local.nodes = _Nodes()
        if not nodes.listed:
            nodes.listed = True
            self._threads[threading.get_ident()] = nodes
        return nodes


def _stem(op_name: str) -> str:
    """The operator type without underscores, which starts with the stem of its node's name (`nlllossforward`, `NllLossBackward0`)."""
    return op_name.rpartition("/")[2].rpartition("-op")[0].replace("_", "")


# `Naming` reads the position of the calling thread (`TrainingObserver`), the program's call stack, and during a backward
# the forward operator, through autograd's sequence numbers. It makes the records for the recorder.

_NO_STACK: Sequence[Frame] = ()


class Link:
    """What a backward operator inherits from its forward operator."""

    __slots__ = ("gradient_scope", "graph_id", "op_name", "spot", "stack", "views")

    def __init__(self, op_name: str, scope: str, graph_id: int, stack: Sequence[Frame], spot: Spot | None) -> None:
        self.op_name = op_name
        self.gradient_scope = GRADIENTS + scope
        self.graph_id = graph_id
        self.stack = stack
        self.spot = spot
        """Where it ran, if marks select operators."""
        self.views: dict[int, int] = {}
        """The step in which its gradient first ran each operator without a kernel, by the identity of the schema."""


def _runs_again(position: Position, frame: FrameType | None, *, gradients: bool) -> bool:
    """Whether a forward operator runs again inside of the backward. Only with gradients, since a gradient's own operators need none."""
    return position.recomputing or (gradients and is_recomputing(frame))


class Naming:
    """Makes the records of operators, of all threads."""

    def __init__(
        self,
        plan: DumpPlan,
        recorder: Recorder,
        observer: TrainingObserver,
        *,
        rank_id: int = 0,
        marks: DumpSelection | None = None,
        models: Models | None = None,
    ) -> None:
        self.rank_id = rank_id
        self.net_name = "" if plan.layout_facts.by_model else plan.net_name
        self.sites = Sites()
        self.links: ForwardLinks[Link] = ForwardLinks()
        self.parameter_scopes: dict[int, str] = {}
        """Scopes of the owners of parameters, by the identity of the parameter."""
        self.matched_kernels: set[str] = set()
        self._plan = plan
        self._recorder = recorder
        self._observer = observer
        self._task_id = plan.layout_facts.unknown_id
        """The id of tasks and streams, which exist only on a device."""
        self._marks = marks
        """Selects operators instead of the plan; None if the plan selects them."""
        self._models = models
        self._passed: dict[tuple[int, str], Link] = {}
        self._adjusts = models is not None or plan.mode.failures_only
        self.stacks = StackReader()
        self.named: tuple[int, str, str, int, str, object] = (0, "", "", 0, "", None)
        """The arguments of the last call of `sites.next`."""
        self._order = 0
        self._timestamp = 0
        self._lock = threading.Lock()

    def identify(
        self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[OpRecord | None, Site, Link | None]:
        """Name the operator that is about to run; return its record, its site, and what its gradient inherits.

        The record is None for an operator without a kernel that was listed before; the link is None if nothing can
        inherit from the operator.
        """
        position = self._observer.current()
        task = graph_task()
        frame = calling_frame(2)
        phase: Phase = position.phase
        call, scope, graph_id = position.call_id, position.scope, position.graph_id
        forward_op, stack = "", _NO_STACK
        link: Link | None = None
        spot: Spot | None = None
        gradients = True
        self._release(position, task)
        if task >= 0:
            gradients = is_grad_enabled()
            if _runs_again(position, frame, gradients=gradients):
                phase, gradients = "recomputation", True
            else:
                phase, call = "backward", ~task  # negative, unlike the number of any call of a network
                link, scope = self._forward_of_gradient(task)
        where: object = ""
        if link is not None:
            # The gradient of an operator is selected with the operator, by the current marks.
            graph_id, stack, spot = link.graph_id, link.stack, link.spot
            where = forward_op = link.op_name
        if stack:
            stack = self.stacks.inside_engine(frame, stack)
        else:  # no forward operator, or its stack was not read
            stack, where = self.stacks.read(frame, position.running)
        if spot is None and self._marks is not None:
            spot = self._marks.spot(position.enclosing, frame)
        with self._lock:
            named = self.named = graph_id, scope, schema.op_type, call, phase, where
            site = self.sites.next(*named)
            occurrence = site.next_occurrence(self.sites.step)
            timestamp = time_ns() // 1000  # `now()`, without the call
            if timestamp <= self._timestamp:
                timestamp = self._timestamp + 1
            self._timestamp = timestamp
            order = self._order
            self._order = order + 1
        known = self._link(site, scope, graph_id, stack, spot) if gradients else None
        skip = schema.kind
        if skip:
            if site.described:
                return None, site, known
        elif (spot is not None or not site.selected) and not self._is_wanted(site, spot, schema.op_type):
            skip = "not selected"
        # Positional, in the order of the fields: keywords would double the time, and this runs for every operator.
        op = OpRecord(
            schema.op_type,
            site.name,
            timestamp,
            self._observer.step,
            self.net_name,
            graph_id,
            self.rank_id,
            0,
            self._task_id,
            self._task_id,
            order,
            occurrence,
            phase,
            schema.kernel,
            forward_op,
            stack,
            arguments_of(site, schema, args, kwargs),
            skip,
        )
        if self._adjusts:
            op = self._adjusted(op, position, link)
        return op, site, known

    def _forward_of_gradient(self, task: int) -> tuple[Link | None, str]:
        """The link to the forward operator whose gradient is running, and the scope if there is none."""
        # None between two nodes, while the engine accumulates gradients.
        node: torch.autograd.graph.Node | None = autograd_node()
        link = None if node is None else self.links.find(node, task)
        if link is not None:
            return link, link.gradient_scope
        return None, GRADIENTS + self.parameter_scopes.get(id(getattr(node, "variable", None)), "Default")

    @staticmethod
    def _link(site: Site, scope: str, graph_id: int, stack: Sequence[Frame], spot: Spot | None) -> Link:
        """What the gradient of the operator inherits; made anew only if it changed since the site's last operator."""
        known: Link | None = site.link
        if known is None or known.stack is not stack or known.spot is not spot:
            known = site.link = Link(site.name, scope, graph_id, stack, spot)
        return known

    def _is_wanted(self, site: Site, spot: Spot | None, op_type: str) -> bool:
        if spot is not None and self._marks is not None and not self._marks.takes(spot):
            self._marks.passed_by(spot)
            return False
        return self.is_selected(site, op_type)

    @property
    def counters(self) -> tuple[int, int]:
        """The number of operators named in this step, and the last time stamp."""
        return self._order, self._timestamp

    @counters.setter
    def counters(self, value: tuple[int, int]) -> None:
        self._order, self._timestamp = value

    def scope(self) -> str:
        return self._observer.current().scope

    def here(self) -> OpRecord:
        """A record of the program's current place, without an operator."""
        position = self._observer.current()
        stack, _ = self.stacks.read(calling_frame(1), position.running)
        return OpRecord(
            op_type="",
            op_name="",
            timestamp=self.now(),
            step=self._observer.step,
            rank_id=self.rank_id,
            task_id=self._task_id,
            stream_id=self._task_id,
            order=self.next_order(),
            stack=stack,
        )

    def name_call(self, op_type: str, op_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OpRecord:
        """Name a call that the program is about to make (`dump_level` op); without `op_name`, by its scope."""
        observer = self._observer
        position = observer.current()
        self._release(position, graph_task())
        stack, where = self.stacks.read(calling_frame(1), position.running)
        with self._lock:
            if op_name:
                site = self.sites.value(~position.graph_id, op_name)
            else:
                # Separate numbers (`~graph_id`), so that calls do not change the numbers of operators.
                site = self.sites.next(
                    ~position.graph_id, position.scope, op_type, position.call_id, position.phase, where
                )
            occurrence = site.next_occurrence(self.sites.step)
            timestamp, order = self.now(), self.next_order()
        op = OpRecord(
            op_type=op_type,
            op_name=op_name or site.name.replace("-op", "-call"),
            timestamp=timestamp,
            step=observer.step,
            graph_id=position.graph_id,
            rank_id=self.rank_id,
            task_id=self._task_id,
            stream_id=self._task_id,
            order=order,
            occurrence=occurrence,
            phase=position.phase,
            stack=stack,
            arguments=arguments_of_call(args, kwargs),
        )
        assert self._models is not None, "calls are recorded only in the layout of devices"
        return self._models.placed(op, inside=position.root is not None and position.phase != "optimizer")

    def _release(self, position: Position, task: int) -> None:
        """Release deferred records once a network, a gradient or an optimizer runs: these prove that a new step began."""
        if self._recorder.is_deferring and (task >= 0 or position.root is not None or position.phase == "optimizer"):
            self._recorder.release()

    def _adjusted(self, op: OpRecord, position: Position, link: Link | None) -> OpRecord:
        """The record, adapted to the mode and the layout. `link`: to the forward operator whose gradient runs."""
        if self._plan.mode.failures_only:
            # Operators that do not fail are not counted, so the number would be wrong.
            op = replace(op, op_name=op.op_name.rpartition("-op")[0])
        if self._models is None:
            return op
        within = position.root is not None or link is not None or op.phase == "recomputation"
        return self._models.placed(op, inside=within and op.phase != "optimizer")

    def passes_by(self) -> None:
        """Note a forward operator that is not recorded, so that its gradient knows the scope if it fails."""
        task, position = graph_task(), self._observer.current()
        self._release(position, task)
        if task >= 0:
            return
        key = position.graph_id, position.scope
        link = self._passed.get(key)
        if link is None:
            link = self._passed[key] = Link("", position.scope, position.graph_id, (), None)
        self.links.begins(link)

    def is_selected(self, site: Site, op_type: str) -> bool:
        if site.selected is None:
            site.selected = self._plan.selects(site.name, op_type)
            if site.selected and self._plan.selection == "kernels":
                self.matched_kernels.update(self._plan.matching_kernels(site.name, op_type))
        return site.selected

    def now(self) -> int:
        """A time stamp that no other record has."""
        self._timestamp = max(self._timestamp + 1, time_ns() // 1000)
        return self._timestamp

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def restart_order(self) -> None:
        self._order = 0


def arguments_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without tensors, as JSON values; the key of a positional one is its position."""
    given = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    return {key: json_value(value) for key, value in given.items() if next(nested_tensors((value,), ""), None) is None}
