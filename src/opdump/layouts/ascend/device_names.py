"""Names that a device generates: for calls of its single-operator interface, and as replacements of names that are too long.

See docs/files.md#names.
"""

from __future__ import annotations

import os
import re
from typing import Final

_MASK: Final = 2**64 - 1
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0xC70F6907


def api_name(kernel: str) -> str:
    """`aclnn` and the operator's name in camel case; `Inplace` if it ends with an underscore.

    >>> api_name("aten::add.Tensor"), api_name("aten::mul_.Tensor"), api_name("aten::native_layer_norm_backward")
    ('aclnnAdd', 'aclnnInplaceMul', 'aclnnNativeLayerNormBackward')
    """
    name = kernel.rpartition("::")[2].partition(".")[0]
    in_place = "Inplace" if name.endswith("_") and not name.endswith("__") else ""
    words = [re.sub(r"[^A-Za-z0-9]", "", word) for word in name.split("_")]
    return f"aclnn{in_place}{''.join(word[:1].upper() + word[1:] for word in words)}"


def hashed_name(path: str) -> str:
    """The name under which a device writes a file with too long a path: the 64-bit MurmurHash of the path as digits.

    >>> hashed_name("abc")
    '3663726644998027833'
    """
    data = os.fsencode(path)
    whole = len(data) & ~7
    value = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    for start in range(0, whole, 8):
        block = int.from_bytes(data[start : start + 8], "little")
        value = (value ^ (_mixed(block * _MULTIPLIER & _MASK) * _MULTIPLIER & _MASK)) * _MULTIPLIER & _MASK
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    return str(_mixed(_mixed(value) * _MULTIPLIER & _MASK))


def _mixed(value: int) -> int:
    return value ^ (value >> 47)
