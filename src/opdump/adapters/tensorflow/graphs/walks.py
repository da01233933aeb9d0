"""Walks through a graph, whatever stands for its nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(first: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """These nodes, and all that can be reached from them, each once."""
    waiting = list(first)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += following(node)


def in_order(nodes: Iterable[Node], before: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """These nodes, and those before them, each behind those before it: in the order given as far as that goes, and as far as nothing comes round."""
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
