"""Two dumps that are hardly of one program: whether they are, and which names of the one are like names of the other."""

from __future__ import annotations

from typing import Final

from opdump.comparison.trace import Trace
from opdump.plan.unmatched_names import nearest

_ONE_OF: Final = 10
"""Where fewer than one operator in so many has a counterpart, what is matched is so by chance."""
_SHOWN: Final = 3


def are_strangers(matched: int, most: int) -> bool:
    """Whether so few operators have a counterpart that nothing can be said, of so many that could have had one."""
    return not matched or matched * _ONE_OF < most


def nearest_names(a: Trace, b: Trace) -> list[str]:
    """What to say of the first operators of A whose names are like some of B's; what both run where there are none."""
    names = dict.fromkeys(node.op.op_name for node in b.nodes)
    notes: list[str] = []
    types: set[str] = set()
    for node in a.nodes:
        wanted = node.op.op_name.rpartition("/")[2].rpartition("-op")[0] or node.op.op_name
        near = [] if node.bare_type in types else nearest(wanted, names)
        types.add(node.bare_type)
        if near:
            notes.append(f"{node.op.op_name} of A has no counterpart in B; the nearest names are {', '.join(near)}")
        if len(notes) == _SHOWN:
            return notes
    return notes or [f"A runs {_types(a)}; B runs {_types(b)}"]


def _types(trace: Trace) -> str:
    types = sorted({node.bare_type for node in trace.nodes})
    more = ", ..." if len(types) > 2 * _SHOWN else ""
    return (", ".join(types[: 2 * _SHOWN]) or "nothing") + more
