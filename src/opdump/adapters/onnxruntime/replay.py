"""Runs recorded operators of ONNX Runtime again, each in a model of its own: in the recorded types, or in float64.

ONNX Runtime has few kernels for float64. If it has none, the reference evaluator of the package onnx is used, and if that fails too
(for ONNX Runtime's own operators), float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from opdump.adapters.host import BY_DTYPE
from opdump.adapters.onnxruntime.model_file import OwnSession
from opdump.adapters.onnxruntime.model_graph import RANDOM_OPERATORS
from opdump.adapters.onnxruntime.nodes import (
    ONNX_DOMAINS,
    NodeModel,
    defaults_of,
    domain_of,
    meant_otherwise,
    model_of,
    versions_of,
)
from opdump.adapters.replay import AS_RECORDED, Array, Replayed, Replayer, Script
from opdump.errors import CannotReplayError
from opdump.records import OpRecord, TensorRecord

_SILENT: Final = 4
_SESSIONS: Final = 64
_SAME: Final = 1e-6
"""Results of two versions of an operator that differ by more, relative to the largest element, mean different operations."""
_DROPS: Final = 2
"""The input of Dropout that enables dropping."""
_REFUSALS: Final = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ImportError)
"""Exceptions of the reference evaluator for an unsupported operator."""


class OnnxReplayer(Replayer):
    """Runs operators of ONNX, and ONNX Runtime's own, on the CPU."""

    def draws(self, op: OpRecord) -> bool:
        return op.op_type in RANDOM_OPERATORS and op.op_type != "Dropout"

    def defaults(self, op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
        return defaults_of(op, inputs)

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        return _run(op, inputs, values, dtype)[0]

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        _, model = _run(op, inputs, values, AS_RECORDED)
        return script_of(model, _fed(model, values), outputs, title=title, has_reference=domain_of(op) in ONNX_DOMAINS)


def _run(
    op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], dtype: str
) -> tuple[Replayed, NodeModel]:
    """The results, and the model that was run."""
    given = _inputs_of(op, inputs, values)
    floating = None if dtype == AS_RECORDED else BY_DTYPE[dtype].number
    engines = (_by_runtime, _by_reference) if _takes_reference(op, floating) else (_by_runtime,)
    reasons: list[str] = []
    for version, engine, all_outputs in itertools.product(versions_of(op, inputs), engines, (True, False)):
        model = model_of(op, inputs, version, floating, all_outputs=all_outputs)
        if floating is not None and not model.computes_in(floating):
            reasons.append(f"it takes no {dtype}")
            continue
        try:
            found = engine(model, _fed(model, given))
        except CannotReplayError as error:
            reasons.append(str(error))
            continue
        outputs = {slot: _array(value) for slot, value in enumerate(found) if value is not None}
        if meant_otherwise(op, version):
            _hold_against_older(op, inputs, given, version, outputs[0])
        return Replayed(outputs, dtype), model
    if dtype == "float64":
        return _run(op, inputs, values, "float32")
    raise CannotReplayError(
        f"ONNX Runtime {onnxruntime.__version__} does not run {op.kernel} on these inputs on the CPU: {''.join(reasons[:1])}"
    )


def _inputs_of(op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array]) -> dict[int, Array]:
    """All inputs by slot. Raises CannotReplayError if a value is missing, or the operator draws random numbers."""
    if OnnxReplayer().draws(op) or (op.op_type == "Dropout" and _DROPS in values and values[_DROPS].any()):
        raise CannotReplayError(
            f"{op.kernel} draws random numbers, and dumps do not contain the state of the generator"
        )
    missing = inputs.keys() - values.keys() - {slot for slot, record in inputs.items() if 0 in record.shape}
    if missing:
        raise CannotReplayError(f"the dump does not have the values of {inputs[min(missing)].name}")
    return {slot: values.get(slot, np.zeros(record.shape)) for slot, record in inputs.items()}


def _takes_reference(op: OpRecord, floating: int | None) -> bool:
    return floating == TensorProto.DOUBLE and domain_of(op) in ONNX_DOMAINS


def _hold_against_older(
    op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], version: int, newest: Array
) -> None:
    """Raises CannotReplayError if an older version of the operator has different results."""
    for older in (each for each in versions_of(op, inputs) if not meant_otherwise(op, each)):
        model = model_of(op, inputs, older, None, all_outputs=False)
        before = _by_runtime(model, _fed(model, values))[0].astype(np.float64)
        apart = np.abs(before - newest).max(initial=0.0)
        if not math.isfinite(apart) or apart > _SAME * max(1.0, np.abs(newest).max(initial=0.0)):
            raise CannotReplayError(
                f"{op.op_name} has another meaning before version {version} of the operator, and the dump does not contain its version"
            )
        return


def _fed(model: NodeModel, values: Mapping[int, Array]) -> dict[str, Array]:
    """The values in the form that the model accepts."""
    return {
        f"x{slot}": np.ascontiguousarray(
            values[slot], element.storage if element.known_to_numpy else np.float32
        ).reshape(values[slot].shape)
        for slot, element in model.types.items()
    }


def _by_runtime(model: NodeModel, values: Mapping[str, Array]) -> list[Any]:
    try:
        return list(_session(model.proto.SerializeToString()).run(None, dict(values)))
    except _runtime_errors() as error:
        raise CannotReplayError(_first_line(error)) from error


@lru_cache(maxsize=_SESSIONS)
def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = _SILENT
    return OwnSession(model, options, providers=["CPUExecutionProvider"])


def _runtime_errors() -> tuple[type[Exception], ...]:
    state = onnxruntime.capi.onnxruntime_pybind11_state
    names = ("Fail", "NotImplemented", "InvalidArgument", "InvalidGraph", "RuntimeException", "NoSuchFile", "EPFail")
    return (*(getattr(state, name) for name in names if hasattr(state, name)), RuntimeError, ValueError)


def _by_reference(model: NodeModel, values: Mapping[str, Array]) -> list[Any]:
    try:
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(model.proto).run(None, dict(values)))
    except _REFUSALS as error:
        raise CannotReplayError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _array(value: Any) -> Array:
    """The elements as numpy arrays; narrow floats are widened to float32."""
    found = np.asarray(value)
    return found if found.dtype.kind != "V" and found.dtype.isbuiltin else found.astype(np.float32)


REPLAYER: Final = OnnxReplayer()


# Writes a program of about twenty lines that runs one recorded node again with only onnx, ONNX Runtime and numpy.
#
# It contains the node as a model in ONNX's own text form; an npz file of the same name has the inputs.

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
