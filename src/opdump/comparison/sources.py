"""Where in one program begins what the other has nowhere, of all that leads to something that the other does not leave.

A value may be nowhere in the other program and right all the same: a mask of another kind, three weights in one matrix, images cut into
columns. It is right if something that is read of it, or computed from it, is there: that clears it, and what it was made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace

Array = NDArray[Any]


@dataclass
class Sources:
    """Filled in the order in which a program runs."""

    trace: Trace
    makers: dict[int, set[int]] = field(default_factory=dict)
    """By node: who made those of its inputs that the other program has nowhere."""
    unknown: set[int] = field(default_factory=set)
    """Nodes that give what the other program has nowhere."""
    _beginning: set[int] = field(default_factory=set)
    """Nodes that read what no node made and the other program has nowhere: states, which two runs round differently, and data."""
    _floating: set[int] = field(default_factory=set)
    """Those of them that give floats."""
    _parts: dict[int, dict[object, int]] = field(default_factory=dict)
    """By node: the parts of what it made that were read and are known, and their sizes."""
    _telling: set[int] = field(default_factory=set)
    """Nodes of the forward pass whose output is known, and depends on what they read. Backward and optimizer know values that say nothing: what
    a normalisation makes of another scale, a gradient of what was read for its shape alone.
    """

    def read(self, node: Node, slot: int, value: Array, makers: Iterable[int], *, is_known: bool) -> None:
        """A node reads this of what these made."""
        made = {maker for maker in makers if maker >= 0}
        if not is_known:
            self.makers.setdefault(node.index, set()).update(made)
            if not made:
                self._beginning.add(node.index)
        elif node.op.phase != "optimizer" and _varies(value):
            record = node.inputs[slot]
            part = (record.shape, record.memory and (record.memory.offset, record.memory.strides))
            for maker in made:
                self._parts.setdefault(maker, {})[part] = value.size

    def gives(self, node: Node, outputs: Mapping[int, Array], *, is_known: bool) -> None:
        """A node gives this, after all that it reads."""
        if not is_known:
            self.unknown.add(node.index)
            if any(value.dtype.kind in "fc" for value in outputs.values()):
                self._floating.add(node.index)
        elif node.op.phase == "forward" and not node.moves and any(map(_varies, outputs.values())):
            self._telling.add(node.index)

    def of(self, lasting: Iterable[int], matched: Container[int], constants: Container[int] = ()) -> list[int]:
        """The nodes that read what the other program has, and give what it has nowhere, on the ways to these nodes; no constants. `matched` have
        a partner in the other program: a source that alone makes one of them give something else comes before one that never does.
        """
        unknown = {index for index in self.unknown if index not in constants}
        found = self._firsts(lasting, unknown - self._cleared()) or self._firsts(lasting, unknown)
        found = [index for index in found if index not in self._beginning]
        reached = Counter(index for source in found for index in self._followers(source))
        alone = [
            source
            for source in found
            if any(reached[index] == 1 and index in matched for index in self._followers(source))
        ]
        return sorted(self._computing(set().union(*(self._who_computes(source) for source in alone or found))))

    def _who_computes(self, index: int) -> AbstractSet[int]:
        """The node, or where it hands on another part of what both programs have, who reads that."""
        readers = self._computing(set(self._readers.get(index, ())))
        if not self.trace.nodes[index].moves or not readers:
            return {index}
        return set().union(*map(self._who_computes, readers))

    def _computing(self, nodes: AbstractSet[int]) -> AbstractSet[int]:
        """Those of the forward pass, if there are any; of these those that give floats, if there are any."""
        forward = {index for index in nodes if self.trace.nodes[index].op.phase == "forward"} or nodes
        return {index for index in forward if index in self._floating} or forward

    def _followers(self, source: int) -> set[int]:
        """A node, and those that give what the other program has nowhere since it does."""
        found = {source}
        waiting = [source]
        while waiting:
            new = {reader for reader in self._readers.get(waiting.pop(), ()) if reader in self.unknown} - found
            found |= new
            waiting.extend(new)
        return found

    @cached_property
    def _readers(self) -> Mapping[int, list[int]]:
        """By node: who reads what it made and the other program has nowhere."""
        found: dict[int, list[int]] = {}
        for index, made in self.makers.items():
            for maker in made:
                found.setdefault(maker, []).append(index)
        return found

    def _firsts(self, lasting: Iterable[int], among: AbstractSet[int]) -> list[int]:
        waiting = [index for index in lasting if index in among]
        seen: set[int] = set()
        while waiting:
            index = waiting.pop()
            if index not in seen:
                seen.add(index)
                waiting.extend(self.makers.get(index, set()) & among)
        return [index for index in seen if not self.makers.get(index, set()) & among]

    def _cleared(self) -> set[int]:
        """Nodes that give what the other program has nowhere, and of which all that is read, or something that is computed of it, is there."""
        found: set[int] = set()
        for index in sorted(self.unknown, reverse=True):
            size = max(self.trace.nodes[index].sizes, default=0)
            if sum(self._parts.get(index, {}).values()) >= size or any(
                reader in self._telling or reader in found for reader in self._readers.get(index, ())
            ):
                found.add(index)
        return found


def _varies(value: Array) -> bool:
    """Whether it is floats, and not all the same: what tells something of what it was computed from."""
    return value.dtype.kind in "fc" and value.size > 1 and bool((value.reshape(-1) != value.flat[0]).any())
