"""Finds the forward operator that an autograd node belongs to.

Autograd numbers its nodes per thread, and makes the node of an operator before it dispatches the operator. So the numbers that are new
since the last operator belong to the operator being dispatched. The exception is `CopySlices`, the node of a write through a view: it is
made after the operator, so it belongs to the last one.

A graph may outlive its step (a GAN makes its images before the discriminator's step ends the iteration), so the links of the previous
step are kept, too.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from opdump.adapters.torch.private_names import number_of, sequence_number

_MOST_NODES = 16
"""The maximum number of nodes that one operator makes. If more are new, operators ran unrecorded, and only the last node is linked."""


class _Named(Protocol):
    @property
    def op_name(self) -> str: ...


Link = TypeVar("Link", bound=_Named)


@dataclass(slots=True, eq=False)
class _Nodes(Generic[Link]):
    """The nodes that one thread made, by their number: the operators before and after the node was made."""

    listed: bool = False  # in `ForwardLinks._threads`
    found_for: tuple[int, int] | None = None
    """Task and number of the last node looked up. Cached, because most nodes run several operators."""
    found: Link | None = None
    recent: dict[int, tuple[Link | None, Link]] = field(default_factory=dict)
    earlier: dict[int, tuple[Link | None, Link]] = field(default_factory=dict)
    last: int = -1
    link: Link | None = None

    def get(self, sequence: int, copies: bool) -> Link | None:
        pair = self.recent.get(sequence) or self.earlier.get(sequence)
        if pair is not None:
            return pair[0] if copies else pair[1]
        return self.link if copies and 0 <= self.last <= sequence else None


class ForwardLinks(Generic[Link]):
    """Links from autograd nodes to the forward operators whose gradients they compute."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._threads: dict[int, _Nodes[Link]] = {}

    def begins(self, link: Link) -> None:
        """Call this for each operator that autograd may have made nodes for, when it is dispatched."""
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

    def made(self, first: int, link: Link) -> None:
        """Link all nodes of this thread from number `first` on to an operator that ran above autograd."""
        nodes = self.mine()
        nodes.last = sequence_number()
        nodes.link = link
        for number in range(first, nodes.last):
            nodes.recent[number] = (link, link)

    def find(self, node: torch.autograd.graph.Node, task: int) -> Link | None:
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

    def mine(self) -> _Nodes[Link]:
        """The nodes of the calling thread."""
        try:
            nodes: _Nodes[Link] = self._local.nodes
        except AttributeError:
            nodes = self._local.nodes = _Nodes()
        if not nodes.listed:
            nodes.listed = True
            self._threads[threading.get_ident()] = nodes
        return nodes


def _stem(op_name: str) -> str:
    """The operator type without underscores, which starts with the stem of its node's name (`nlllossforward`, `NllLossBackward0`)."""
    return op_name.rpartition("/")[2].rpartition("-op")[0].replace("_", "")
