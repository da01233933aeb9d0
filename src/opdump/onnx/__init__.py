"""ONNX models under capture: the inputs and outputs of every node are dumped, and the results stay those of ONNX Runtime.

    import opdump.onnx

    with opdump.onnx.session("resnet.onnx", "acl.json") as s:
        outputs = s.run(None, {"x": image})
    print(s.report)

`opdump infer` is the same as a command; `opdump.acl` is the same behind the interface of an inference program for Ascend devices.
"""

from __future__ import annotations

from opdump.onnx.recording import ModelDump, ModelRecording, plan_of, session

__all__ = ["ModelDump", "ModelRecording", "plan_of", "session"]
