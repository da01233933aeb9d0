"""Import this before torchvision, and before anything that imports it.

The wheel of torchvision that goes with this PyTorch is linked against CUDA and cannot be loaded on a CPU. Its Python part, which
other packages import, needs these two operators; no program of the collection calls them.
"""

from __future__ import annotations

import torch

SCHEMAS = torch.library.Library("torchvision", "DEF")
SCHEMAS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
SCHEMAS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
