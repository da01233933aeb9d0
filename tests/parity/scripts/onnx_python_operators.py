"""Models that call Python code of the program through onnxruntime-extensions: how often it runs, with and without a dump.

Prints one line of JSON: for each case the number of calls without and with a dump, whether the answers are the same bits, and what was captured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op

from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.plan import StepSet
from tests.onnx.recording import Recording

CALLS: list[int] = []
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
RUNS = 3


@onnx_op(op_type="Ask", inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
def ask(x: Any) -> Any:
    """A function with an effect and a state: its result depends on how often it was called."""
    CALLS.append(x.size)
    return x + len(CALLS)


def options() -> onnxruntime.SessionOptions:
    found = onnxruntime.SessionOptions()
    found.log_severity_level = 3
    found.register_custom_ops_library(get_library_path())
    return found


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    domain = "ai.onnx.contrib" if op_type == "Ask" else attributes.pop("domain", "")
    return helper.make_node(op_type, inputs, outputs, name=f"{outputs[0]}_{op_type}", domain=domain, **attributes)


def model(nodes: list[Any], kind: int = FLOAT, functions: tuple[Any, ...] = ()) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "asks",
        [helper.make_tensor_value_info("x", kind, [None])],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.contrib", 1), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


CHAIN = model(
    [node("Exp", ["x"], ["a"]), node("Ask", ["a"], ["b"]), node("Tanh", ["b"], ["c"]), node("Sin", ["c"], ["y"])]
)
IN_HALF = model(
    [
        node("Exp", ["x"], ["a"]),
        node("Cast", ["a"], ["f"], to=FLOAT),
        node("Ask", ["f"], ["g"]),
        node("Cast", ["g"], ["b"], to=HALF),
        node("Tanh", ["b"], ["c"]),
        node("Sin", ["c"], ["y"]),
    ],
    HALF,
)
RANDOM = model(
    [
        node("RandomNormalLike", ["x"], ["r"], seed=3.0),
        node("Add", ["x", "r"], ["a"]),
        node("Ask", ["a"], ["b"]),
        node("Tanh", ["b"], ["y"]),
    ]
)
LAST = model([node("Exp", ["x"], ["a"]), node("Ask", ["a"], ["y"])])
ALONE = model([node("Ask", ["x"], ["y"])])
TWICE = model([node("Ask", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Ask", ["b"], ["y"])])
IN_A_BODY = model(
    [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], name="zero", value_float=-100.0),
        node("Greater", ["s", "zero"], ["more"]),
        node(
            "If",
            ["more"],
            ["b"],
            then_branch=helper.make_graph(
                [node("Ask", ["x"], ["t"])], "then", [], [helper.make_tensor_value_info("t", FLOAT, None)]
            ),
            else_branch=helper.make_graph(
                [node("Neg", ["x"], ["e"])], "else", [], [helper.make_tensor_value_info("e", FLOAT, None)]
            ),
        ),
        node("Tanh", ["b"], ["y"]),
    ]
)
IN_A_FUNCTION = model(
    [node("Asking", ["x"], ["b"], domain="own"), node("Tanh", ["b"], ["y"])],
    functions=(
        helper.make_function(
            "own",
            "Asking",
            ["p"],
            ["q"],
            [node("Ask", ["p"], ["inner"]), node("Cast", ["inner"], ["q"], to=FLOAT)],
            [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.contrib", 1)],
        ),
    ),
)
FAILS = model(
    [
        node("Ask", ["x"], ["a"]),
        helper.make_node("Constant", [], ["shape"], name="shape", value_ints=[7, 7]),
        node("Reshape", ["a", "shape"], ["y"]),
    ]
)
CASES: dict[str, tuple[ModelProto, dict[str, Any]]] = {
    "a chain": (CHAIN, {}),
    "a chain, optimised": (CHAIN, {"level": "all"}),
    "a chain, in pieces": (CHAIN, {"memory_limit": 1}),
    "a chain, some steps": (CHAIN, {"steps": "1"}),
    "half precision": (IN_HALF, {}),
    "half precision, optimised": (IN_HALF, {"level": "all"}),
    "with random numbers": (RANDOM, {}),
    "with random numbers, in pieces": (RANDOM, {"memory_limit": 1}),
    "the last operator": (LAST, {}),
    "the only operator": (ALONE, {"level": "all"}),
    "two of them": (TWICE, {"level": "all"}),
    "in a body": (IN_A_BODY, {}),
    "in a body, optimised": (IN_A_BODY, {"level": "all"}),
    "in a function": (IN_A_FUNCTION, {}),
    "in a function, optimised": (IN_A_FUNCTION, {"level": "all"}),
    "a failure": (FAILS, {}),
    "a failure, by exception": (FAILS, {"captures": "exception"}),
    "a failure, optimised": (FAILS, {"level": "all"}),
}
LEVELS = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def outcomes(run: Any, feeds: Mapping[str, Any]) -> tuple[list[Any], int]:
    """The answers or errors of some runs, and how often the Python code was called."""
    CALLS.clear()
    found = [outcome(run, feeds) for _ in range(RUNS)]
    return found, len(CALLS)


def outcome(run: Any, feeds: Mapping[str, Any]) -> Any:
    try:
        return run(feeds)
    except Exception as error:  # noqa: BLE001  the runtime's errors have no specific class
        return [str(error)]


def case(content: ModelProto, settings: dict[str, Any]) -> dict[str, Any]:
    kind = content.graph.input[0].type.tensor_type.elem_type
    feeds = {"x": np.linspace(-2, 1, 50).astype(np.float16 if kind == HALF else np.float32)}
    own = options()
    own.graph_optimization_level = LEVELS[settings.get("level", "disable")]
    session = onnxruntime.InferenceSession(content.SerializeToString(), own, providers=["CPUExecutionProvider"])
    plain, asked = outcomes(lambda fed: session.run(None, fed), feeds)
    plan: dict[str, Any] = {}
    if "captures" in settings:
        plan["captures"] = settings.pop("captures")
    if "steps" in settings:
        plan["steps"] = StepSet.parse(settings.pop("steps"))
    recording = Recording(content, plan, session_options=options(), **settings)
    answers, asked_recorded = outcomes(recording.run, feeds)
    # The input of a reader must equal the output of its source, identified by step and name.
    gave = {
        (record.op.step, f"{record.op.op_name}:{record.slot}"): record.payload.to_host().tobytes()
        for record in recording.writer.tensors
        if record.io == "output" and record.payload is not None
    }
    read = [
        (gave[record.op.step, record.source], record.payload.to_host().tobytes())
        for record in recording.writer.tensors
        if record.io == "input" and record.payload is not None and (record.op.step, record.source) in gave
    ]
    return {
        "asked": [asked, asked_recorded],
        "same": all(same_bits(one, other) for one, other in zip(plain, answers, strict=True)),
        "captured": recording.captured,
        "fits": all(one == other for one, other in read),
        "notes": recording.session.notes,
    }


if __name__ == "__main__":
    print(json.dumps({name: case(*each) for name, each in CASES.items()}))
