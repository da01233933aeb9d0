"""Writes a program of about twenty lines that runs one recorded node again with only onnx, ONNX Runtime and numpy.

It contains the node as a model in ONNX's own text form; an npz file of the same name has the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx

from opdump.adapters.onnxruntime.replay_model import NodeModel
from opdump.adapters.replay import Array, Script
from opdump.records import TensorRecord

_HEAD: Final = '''\
"""{title}"""
import numpy as np
import onnx
import onnxruntime{reference_import}

MODEL = """\\
{model}"""
with np.load(__file__.removesuffix(".py") + ".npz") as file:
    data = dict(file)
model = onnx.parser.parse_model(MODEL)
inputs = {{value.name: data[value.name] for value in model.graph.input}}
names = [value.name for value in model.graph.output]
recorded = {{name: data[name] for name in names if name in data}}
now = dict(zip(names, onnxruntime.InferenceSession(model.SerializeToString()).run(names, inputs)))
'''
_AGAINST_REFERENCE: Final = """\
wide = {name: value.astype("float64") if value.dtype.kind == "f" else value for name, value in inputs.items()}
exact = dict(zip(names, ReferenceEvaluator(model).run(names, wide)))
"""
_AGAINST_ITSELF: Final = "exact = now  # only ONNX Runtime has this operator\n"
_END: Final = """\
for name in names:
    for when, given in (("recorded", recorded.get(name, now[name])), ("now", now[name])):
        one, other = given.astype("float64"), exact[name].astype("float64")
        apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, np.abs(one - other)).max(initial=0)
        print(f"{name} {when}, {given.dtype}: {apart:.6g} from {exact[name].dtype}, its largest element is {np.abs(other).max(initial=0):.6g}")
"""


def script_of(
    model: NodeModel,
    fed: Mapping[str, Array],
    outputs: Mapping[int, TensorRecord],
    *,
    title: str,
    has_reference: bool,
) -> Script:
    """The program. `fed` are the inputs of the model, `outputs` the recorded outputs."""
    recorded = {f"y{slot}": record.numpy() for slot, record in outputs.items() if slot < model.outputs}
    head = _HEAD.format(
        title=title,
        model=onnx.printer.to_text(model.proto).strip() + "\n",
        reference_import="\nfrom onnx.reference import ReferenceEvaluator" if has_reference else "",
    )
    return Script(head + (_AGAINST_REFERENCE if has_reference else _AGAINST_ITSELF) + _END, {**fed, **recorded})
