"""Graphs for the tests: one made by hand, and a strategy for arbitrary ones."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from opdump.graph import Graph, GraphInput, GraphNode, GraphOutput, GraphValue
from opdump.records import Frame

DATA = Path(__file__).parents[1] / "data" / "graphs"
PHASES = ("forward", "recomputation", "backward", "optimizer")


def small_graph() -> Graph:
    """A convolution, a view of its second output, a gradient and an update, with every kind of source."""
    stack = (
        Frame("/home/me/train.py", 175, "forward", "x = self.conv3(x)  # half of a/b:12/"),
        Frame("train.py", 3, "main", ""),
    )
    convolution = GraphNode(
        op_name="Default/network-LeNet/conv3-Conv2d/convolution-op0",
        op_type="convolution",
        inputs=(
            GraphInput("", "float32", (2, 1, 28, 28)),
            GraphInput("Parameter.conv3.weight", "bfloat16", (4, 1, 5, 5)),
            GraphInput("data-0", "complex64", ()),
        ),
        outputs=(GraphOutput("float32", (2, 4, 24, 24)), GraphOutput("float8_e4m3fn", (7,))),
        attributes={
            "stride": [1, 1],
            "alpha": 0.5,
            "transposed": False,
            "mode": 'same, (not "valid")',
            "bias": None,
            "groups": 1,
            "nested": [[1, 2], [], ["a"]],
        },
        stack=stack,
    )
    view = GraphNode(
        op_name="Default/network-LeNet/view-op1",
        op_type="view",
        inputs=(GraphInput(f"{convolution.op_name}:1", "float8_e4m3fn", (7,)),),
        outputs=(GraphOutput("float8_e4m3fn", (7, 1)),),
        stack=stack[:1],
        runs_kernel=False,
    )
    gradient = GraphNode(
        op_name="Gradients/Default/network-LeNet/conv3-Conv2d/convolution_backward-op2",
        op_type="convolution_backward",
        phase="backward",
        inputs=(
            GraphInput(f"{convolution.op_name}:0", "float32", (2, 4, 24, 24)),
            GraphInput("Other/graph-op0:1", "int64", (0,)),
        ),
        outputs=(GraphOutput("float32", (4, 1, 5, 5)),),
    )
    update = GraphNode(op_name="Default/optimizer-SGD/step-op3", op_type="step", phase="optimizer")
    return Graph(
        graph_id=3,
        root_name="3",
        nodes=(convolution, view, gradient, update),
        parameters=(
            GraphValue("conv3.weight", "bfloat16", (4, 1, 5, 5)),
            GraphValue("1", "float32", ()),
            GraphValue("inputs0", "int64", (2,)),
        ),
        constants=(GraphValue("data-0", "", ()),),
    )


def without_functions(graph: Graph) -> Graph:
    """The graph as a file can store it: frames without function names."""
    nodes = tuple(
        GraphNode(
            op_name=node.op_name,
            op_type=node.op_type,
            phase=node.phase,
            inputs=node.inputs,
            outputs=node.outputs,
            attributes=dict(node.attributes),
            stack=tuple(Frame(frame.file, frame.line, "", frame.code) for frame in node.stack),
            runs_kernel=node.runs_kernel,
        )
        for node in graph.nodes
    )
    return Graph(
        graph_id=graph.graph_id,
        root_name=graph.root_name,
        nodes=nodes,
        parameters=graph.parameters,
        constants=graph.constants,
    )


_names = st.text(
    st.characters(codec="ascii", categories=("L", "N"), include_characters="_-./ "), min_size=1, max_size=20
)
_words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
_dtypes = st.sampled_from(["float32", "bfloat16", "float16", "int64", "bool", "uint8", "complex128", "float8_e5m2"])
_numbered = st.sampled_from(["float32", "bfloat16", "float64", "int64", "bool", "uint16"])
_shapes = st.lists(st.integers(-1, 2**40), max_size=4).map(tuple)
_scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_frames = st.builds(
    Frame,
    st.from_regex(r"/[a-z][a-z_/]{0,20}\.py", fullmatch=True),
    st.integers(1, 10**6),
    st.just(""),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
    .map(str.strip)
    .filter(lambda code: "<~~" not in code),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs of a few nodes in which every kind of source occurs."""
    parameters = tuple(
        GraphValue(name, draw(_numbered), draw(_shapes)) for name in draw(st.lists(_names, max_size=3, unique=True))
    )
    constants = tuple(
        GraphValue(f"data-{index}", draw(_numbered), draw(_shapes)) for index in range(draw(st.integers(0, 2)))
    )
    known = {f"Parameter.{value.name}": value for value in parameters} | {value.name: value for value in constants}
    nodes: list[GraphNode] = []
    made: dict[str, GraphOutput] = {}
    for index in range(draw(st.integers(0, 4))):
        inputs = []
        for source in draw(st.lists(st.sampled_from(["", "Elsewhere/x-op0:1", *known, *made]), max_size=4)):
            value = known.get(source)
            dtype, shape = (value.dtype, value.shape) if value else made.get(source, (draw(_dtypes), draw(_shapes)))
            inputs.append(GraphInput(source, dtype, shape))
        node = GraphNode(
            op_name=f"Default/{draw(_names).strip() or 'a'}/{draw(_words)}-op{index}",
            op_type=draw(_words),
            phase=draw(st.sampled_from(["forward", "recomputation", "backward", "optimizer"])),
            inputs=tuple(inputs),
            outputs=tuple(GraphOutput(draw(_dtypes), draw(_shapes)) for _ in range(draw(st.integers(0, 3)))),
            attributes=draw(st.dictionaries(_words, _values, max_size=4)),
            stack=tuple(draw(st.lists(_frames, max_size=3))),
            runs_kernel=draw(st.booleans()),
        )
        nodes.append(node)
        made |= {f"{node.op_name}:{slot}": output for slot, output in enumerate(node.outputs)}
    graph_id = draw(st.integers(0, 999))
    return Graph(
        graph_id=graph_id, root_name=str(graph_id), nodes=tuple(nodes), parameters=parameters, constants=constants
    )
