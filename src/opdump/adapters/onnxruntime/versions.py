"""Which ONNX Runtime runs the models."""

from __future__ import annotations

from typing import Final

import onnxruntime

RUNTIME_VERSION: Final[str] = onnxruntime.__version__
