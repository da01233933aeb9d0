"""Finds the module that the program calls a part of: `self.net(x)` in `training_step` of a LightningModule, `model.encode(x)`.

    outermost_owner(net)      the LightningModule whose `training_step` is running, None outside such a method

PyTorch knows no parents, so the methods that run are asked: the first argument of each is looked at once for each module that the
program calls, not for each call.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

from opdump.adapters.torch.training_scopes import compiled_original, is_network

_SNAPSHOTS = sys.version_info < (3, 13)
"""Reading the locals of a function leaves a copy in its frame, which keeps alive what the program lets go."""


def outermost_owner(module: nn.Module) -> nn.Module | None:
    """The outermost module with a running method below which `module` is registered; None where there is none."""
    original = compiled_original(module)
    found: nn.Module | None = None
    seen: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = _first_argument(frame)
        if isinstance(owner, nn.Module) and id(owner) not in seen:
            seen.add(id(owner))
            around = compiled_original(owner) is not original and any(part is original for part in owner.modules())
            if around and is_network(owner):
                found = owner
        frame = frame.f_back
    return found


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    if code.co_argcount == 0 or code.co_varnames[0] != "self":
        return None
    values = frame.f_locals
    owner = values.get("self")
    # Three: the frame's, ours, and that of the call. With more, the program asked for its locals itself and keeps them.
    if _SNAPSHOTS and sys.getrefcount(values) == 3:
        values.clear()
    return owner
