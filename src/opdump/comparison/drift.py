"""How far two trainings have drifted apart by rounding when a step begins: what A is given, as B might have it.

Two frameworks round otherwise, so after ten steps weights and the states of optimizers differ by more than one operator's rounding. That is no
difference of the step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.tensor_layouts import find_layout
from opdump.comparison.trace import Trace, has_elements
from opdump.comparison.value_matching import Matched, Place
from opdump.records import TensorRecord

Array = NDArray[Any]

MOST: Final = 1e-4
"""What is further apart, relative to the root mean square, has not drifted: it differs."""


def drifted_inputs(a: Trace, b: Trace, matched: Matched) -> Mapping[Place, Array]:
    """What A's nodes read and no operator made: B's elements of it in A's layout; where B does not show it, A's, moved at random by as
    much as the two are apart in what they give of that size: a momentum by as much as its gradient.

    Floats with elements alone. Nothing of the first step of a training, which begins with the same numbers.
    """
    if min(a.step, b.step) == 0:
        return {}
    theirs = {number: b.nodes[index].inputs[slot] for (index, slot), number in matched.b.read.items()}
    theirs |= {number: b.nodes[index].outputs[slot] for (index, slot), number in matched.b.made.items()}
    apart: dict[int, float] = defaultdict(float)
    for pair in matched.pairs.values():
        size = math.prod(a.nodes[pair.a[0]].outputs[pair.a[1]].shape)
        if pair.distance <= MOST:
            apart[size] = max(apart[size], pair.distance)
    found: dict[Place, Array] = {}
    for node in a.nodes:
        for slot, record in node.inputs.items():
            if slot in node.makers or record.skip or not has_elements(record) or not record.dtype.startswith("float"):
                continue
            number = matched.a.read.get((node.index, slot))
            other = None if number is None else theirs[number]
            moved = _moved(record, apart[math.prod(record.shape)]) if other is None else _as_in(record, other)
            if moved is not None:
                found[node.index, slot] = moved
    return found


def _as_in(record: TensorRecord, other: TensorRecord) -> Array | None:
    """The elements of the other in the layout of the first; None where they have not drifted, but differ."""
    if not has_elements(other):
        return None
    layout = find_layout(record.numpy(), other.numpy(), within=MOST)
    return None if layout is None else layout[0].apply(other.numpy()).astype(record.numpy().dtype)


def _moved(record: TensorRecord, apart: float) -> Array | None:
    """The elements, each moved by that much of their root mean square, up or down; the same of equal ones every time."""
    values = record.numpy()
    rms = float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else math.nan
    if apart == 0.0 or not math.isfinite(rms):
        return None
    signs = np.random.default_rng(values.size).choice((-1.0, 1.0), values.shape)
    return (values + apart * rms * signs).astype(values.dtype)
