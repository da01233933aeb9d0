"""Traverses a graph, for any kind of nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(first: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """These nodes, and all reachable ones, each once."""
    waiting = list(first)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += following(node)


def in_order(nodes: Iterable[Node], before: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """These nodes and their predecessors, each after its predecessors: in the given order where possible, and without cycles."""
    found: dict[Node, None] = {}
    opened: set[Node] = set()
    for first in nodes:
        waiting = [first]
        while waiting:
            node = waiting[-1]
            missing = () if node in opened else [each for each in before(node) if each not in found]
            opened.add(node)
            if missing:
                waiting += missing
            else:
                found[node] = None
                waiting.pop()
    return list(found)
