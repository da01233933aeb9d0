"""What a device's single-operator interface calls an operator of an eager framework.

>>> api_name("aten::add.Tensor"), api_name("aten::mul_.Tensor"), api_name("aten::native_layer_norm_backward")
('aclnnAdd', 'aclnnInplaceMul', 'aclnnNativeLayerNormBackward')

See docs/files.md#names.
"""

from __future__ import annotations

import re


def api_name(kernel: str) -> str:
    """`aclnn` and the operator's name in capitals and small letters; `Inplace` where it ends with an underscore."""
    name = kernel.rpartition("::")[2].partition(".")[0]
    in_place = "Inplace" if name.endswith("_") and not name.endswith("__") else ""
    words = [re.sub(r"[^A-Za-z0-9]", "", word) for word in name.split("_")]
    return f"aclnn{in_place}{''.join(word[:1].upper() + word[1:] for word in words)}"
