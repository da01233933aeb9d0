"""ONNX models under capture: what every node reads and writes is dumped, and the answers stay those of ONNX Runtime.

    import opdump.onnx

    with opdump.onnx.session("resnet.onnx", "acl.json") as s:
        outputs = s.run(None, {"x": image})
    print(s.report)

`opdump infer` is the same as a command, `opdump.acl` the same behind the calls of an inference program for Ascend devices.
"""

from __future__ import annotations

from opdump.onnx.recording import ModelRecording
from opdump.onnx.sessions import ModelDump, plan_of, session

__all__ = ["ModelDump", "ModelRecording", "plan_of", "session"]
