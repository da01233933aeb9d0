"""What watch mode calls its looks at memory: `A_To_C` is what the outputs of C held when A had run.

>>> str(WatchedLook("conv1", "relu_To_fc"))
'conv1_To_relu_To_fc'
>>> [look.node for look in WatchedLook.readings("conv1_To_relu_To_fc")]
['relu_To_fc', 'fc']
"""

from __future__ import annotations

from typing import Final, NamedTuple

_TO: Final = "_To_"


class WatchedLook(NamedTuple):
    """A look at the outputs of `node`, when `after` had run."""

    after: str
    node: str

    def __str__(self) -> str:
        return f"{self.after}{_TO}{self.node}"

    @classmethod
    def readings(cls, op_name: str) -> list[WatchedLook]:
        """What a name may mean, the longest `node` first; empty where it is no such name."""
        parts = op_name.split(_TO)
        return [cls(_TO.join(parts[:place]), _TO.join(parts[place:])) for place in range(1, len(parts))]
