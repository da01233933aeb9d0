"""The version of ONNX Runtime that runs the models."""

from __future__ import annotations

from typing import Final

import onnxruntime

from opdump.adapters.host.reader import HostRuntime

RUNTIME: Final = HostRuntime("onnxruntime", onnxruntime.__version__, "CPU")
