"""The program's names of functions, for which the runtime has longer names."""

from __future__ import annotations

import re
from typing import Final

_GRADIENT: Final = re.compile(r"^__inference___backward_(.*?)(?:_\d+)*$")
_TRACED: Final = re.compile(r"^__(?:inference|forward)_|(?:_\d+)+$")
_OF_GRAPH: Final = re.compile(r"^__(?:inference|forward|backward)_|_\d+$")


def plain_name(name: str) -> str:
    """`loss` for `__inference_loss_12`, `__forward_loss_34` and `__inference___backward_loss_12_34`."""
    gradient = _GRADIENT.match(name)
    plain = gradient[1] if gradient is not None else _TRACED.sub("", name)
    return re.sub(r"[^\w.-]+", "", plain) or "function"


def shown_name(name: str) -> str:
    """The same; for a gradient `gradients/loss`."""
    return f"gradients/{plain_name(name)}" if _GRADIENT.match(name) else plain_name(name)


def graph_name(name: str) -> str:
    """The name of the graph of a traced function: `step_2` for `__inference_step_2_12`."""
    return _OF_GRAPH.sub("", name)
