"""The grammar of file names, the graph operator behind the name of a file, and its source lines."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.graph import Graph, GraphInput, GraphNode, GraphValue
from opdump.layouts.mindspore_sync.files import (
    FileName,
    dtype_of_token,
    dtype_token,
    op_name_in_files,
    parse_file_name,
    sanitise,
)
from opdump.layouts.mindspore_sync.from_files import TrueNames, numbered_as_run, program_stack
from opdump.records import Frame
from opdump.testing.stand_ins import DTYPES

_PLAIN = st.text(
    st.characters(exclude_characters='/\\. ",\x7f', exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30
)


def test_the_documented_example_is_parsed() -> None:
    name = "Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.npy"
    parsed = FileName("Conv2D", "Conv2D-op12", 0, 0, 1623124369613540, "output", 0, "DefaultFormat")
    assert parse_file_name(name) == parsed
    assert str(parsed) == name


def test_a_name_of_mindspore_2_10() -> None:
    name = "MatMul.Default_fc-Dense_MatMul-op0.0.0.1795247154245448.input.1.DefaultFormat.Float32.npy"
    parsed = parse_file_name(name)
    assert parsed == FileName(
        "MatMul", "Default_fc-Dense_MatMul-op0", 0, 0, 1795247154245448, "input", 1, "DefaultFormat", "Float32"
    )
    assert str(parsed) == name


def test_ascend_streams_and_formats() -> None:
    parsed = parse_file_name("Conv2D.Default_Conv2D-op1.65535.7.161243956333802.input.0.NC1HWC0.float16.npy")
    assert parsed is not None
    assert (parsed.task_id, parsed.stream_id, parsed.format, parsed.dtype) == (65535, 7, "NC1HWC0", "float16")


@given(
    st.builds(
        FileName,
        op_type=_PLAIN,
        op_name=_PLAIN,
        task_id=st.integers(0, 10**9),
        stream_id=st.integers(0, 10**9),
        timestamp=st.integers(0, 10**18),
        io=st.sampled_from(["input", "output"]),
        slot=st.integers(0, 999),
        format=_PLAIN,
        dtype=st.one_of(st.just(""), _PLAIN),
    )
)
def test_parsing_gives_back_what_was_printed(name: FileName) -> None:
    assert parse_file_name(str(name)) == name


@given(st.text(max_size=60))
def test_what_is_sanitised_can_stand_in_a_name(text: str) -> None:
    name = FileName(sanitise(text), sanitise(text), 0, 0, 1, "input", 0, "DefaultFormat")
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    assert parse_file_name(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "statistic.csv",
        "1994743515.npy",
        "mapping.csv",
        "Conv2D.Conv2D-op12.0.0.x.output.0.DefaultFormat.npy",
        "Conv2D.Conv2D-op12.0.0.1.result.0.DefaultFormat.npy",
        "Conv2D.Conv2D-op12.0.0.1.output.-1.DefaultFormat.npy",
        "Conv2D.Conv2D-op12.0.0.1.output.0.DefaultFormat.npy.part",
        "Conv2D.a/../b.0.0.1.output.0.DefaultFormat.npy",
        "Conv2D.x.0.0.99999999999999999999999.output.0.DefaultFormat.npy",
        "Conv2D.x.0.0.\u0661.output.0.DefaultFormat.npy",
        "",
        ".npy",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert parse_file_name(name) is None


def test_mindspores_replacements() -> None:
    assert sanitise("Default/net-A/a\\b.c d") == "Default_net-A_a_b_c_d"


def test_mindspore_2_3_names_by_the_last_component_and_parameters_by_all() -> None:
    full = "Default/network-LeNet/conv1-Conv2d/Conv2D-op12"
    assert op_name_in_files("Conv2D", full, "mindspore-2.3") == "Conv2D-op12"
    assert op_name_in_files("Conv2D", full, "mindspore-2.10") == "Default_network-LeNet_conv1-Conv2d_Conv2D-op12"
    for naming in ("mindspore-2.3", "mindspore-2.10"):
        assert op_name_in_files("Parameter", "fc1.weight", naming) == "fc1_weight"
        assert op_name_in_files("Parameter", "a/b.weight", naming) == "a_b_weight"


@pytest.mark.parametrize(
    ("dtype", "token"),
    [
        ("float32", "Float32"),
        ("bfloat16", "BFloat16"),
        ("bool", "Bool"),
        ("uint8", "UInt8"),
        ("int64", "Int64"),
        ("complex64", "Complex64"),
        ("float8_e4m3fn", "Float8E4M3FN"),
    ],
)
def test_tokens_of_element_types(dtype: str, token: str) -> None:
    assert dtype_token(dtype) == token


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_read_in_either_spelling(dtype: str) -> None:
    assert dtype_of_token(dtype_token(dtype)) == dtype
    assert dtype_of_token(dtype) == dtype


LIBRARY = "/opt/lib/python3.11/site-packages/mindspore/nn/wrap/cell_wrapper.py"


def numbered(graph: tuple[str, ...], counts: Counter[str] | None = None) -> list[str]:
    nodes = tuple(GraphNode(op_name=name, op_type=name.rpartition("/")[2]) for name in graph)
    return [node.op_name for node in numbered_as_run(Graph(graph_id=0, nodes=nodes), counts or Counter()).nodes]


def test_operators_are_numbered_by_scope_and_type_in_the_order_of_the_file() -> None:
    found = numbered(("A/Add-op1", "A/Mul-op7", "A/Add-op0", "B/Add-op4", "A/Add-op3"))
    assert found == ["A/Add-op0", "A/Mul-op0", "A/Add-op1", "B/Add-op0", "A/Add-op2"]


def test_numbers_go_on_from_one_graph_of_a_process_to_the_next() -> None:
    counts: Counter[str] = Counter()
    nodes = (GraphNode(op_name="A/Add-op5", op_type="Add"), GraphNode(op_name="A/Mul-op5", op_type="Mul"))
    numbered_as_run(Graph(graph_id=0, nodes=nodes), counts)
    assert numbered(("A/Add-op0", "A/Add-op1", "B/Add-op0"), counts) == ["A/Add-op1", "A/Add-op2", "B/Add-op0"]


def test_an_operator_that_gets_the_name_of_another_keeps_its_own_makers() -> None:
    nodes = (
        GraphNode(op_name="A/Add-op1", op_type="Add"),
        GraphNode(op_name="A/Add-op0", op_type="Add", inputs=(GraphInput("A/Add-op1:0"),)),
        GraphNode(op_name="A/Mul-op0", op_type="Mul", inputs=(GraphInput("A/Add-op0:0"), GraphInput("Parameter.w"))),
    )
    graph = numbered_as_run(Graph(graph_id=0, nodes=nodes), Counter())
    assert [[given.source for given in node.inputs] for node in graph.nodes] == [
        [],
        ["A/Add-op0:0"],
        ["A/Add-op1:0", "Parameter.w"],
    ]


def test_a_parameter_is_found_through_the_operators_that_load_it() -> None:
    load = GraphNode(op_name="A/Load-op0", op_type="Load", inputs=(GraphInput("Parameter.w"),), runs_kernel=False)
    reader = GraphNode(op_name="A/Mul-op0", op_type="Mul", inputs=(GraphInput("A/Load-op0:0"),))
    names = TrueNames((), (), Graph(graph_id=0, nodes=(load, reader)))
    assert names.source(reader, 0) == GraphInput("Parameter.w")
    assert names.source(reader, 1) is None


def test_operators_that_load_each_other_have_no_source() -> None:
    loads = [
        GraphNode(
            op_name=f"A/Load-op{one}", op_type="Load", inputs=(GraphInput(f"A/Load-op{other}:0"),), runs_kernel=False
        )
        for one, other in ((0, 1), (1, 0))
    ]
    assert TrueNames((), (), Graph(graph_id=0, nodes=tuple(loads))).source(loads[0], 0) is None


def test_the_stack_has_one_frame_of_the_program_for_each_call() -> None:
    noted = [
        Frame("net.py", 23, "", "x = self.relu(x)"),
        Frame("net.py", 21, "", "def construct(self, x):"),
        Frame(LIBRARY, 122, "", "out = self._backbone(data)"),
        Frame(LIBRARY, 121, "", "def construct(self, data, label):"),
    ]
    assert program_stack(noted) == (Frame("net.py", 23, "construct", "x = self.relu(x)"),)


def test_mindspores_own_frames_stay_where_there_are_no_others() -> None:
    assert program_stack([Frame(LIBRARY, 190, "", "success = True")]) == (Frame(LIBRARY, 190, "", "success = True"),)


def test_a_program_below_a_directory_called_mindspore_is_a_program() -> None:
    frame = Frame("/home/someone/mindspore/train.py", 3, "", "y = f(x)")
    assert program_stack([frame]) == (frame,)


def test_a_maker_is_found_behind_operators_that_hand_on() -> None:
    makers = [GraphNode(op_name=f"A/Mul-op{number}", op_type="Mul") for number in range(2)]
    handing_on = [
        GraphNode(
            op_name="A/MakeTuple-op0",
            op_type="MakeTuple",
            inputs=(GraphInput("A/Mul-op0:0"), GraphInput("A/Mul-op1:0")),
            runs_kernel=False,
        ),
        GraphNode(
            op_name="A/Depend-op0",
            op_type="Depend",
            inputs=(GraphInput("A/Mul-op1:0"), GraphInput("A/Mul-op0:0")),
            runs_kernel=False,
        ),
    ]
    given = tuple(map(GraphInput, ("A/MakeTuple-op0:0", "A/MakeTuple-op0:1", "A/Depend-op0:0")))
    reader = GraphNode(op_name="A/AddN-op0", op_type="AddN", inputs=given)
    names = TrueNames((), (), Graph(graph_id=0, nodes=(*makers, *handing_on, reader)))
    found = [names.source(reader, slot) for slot in range(3)]
    assert found == [GraphInput("A/Mul-op0:0"), GraphInput("A/Mul-op1:0"), GraphInput("A/Mul-op1:0")]


def item(number: int, source: str, index: str) -> GraphNode:
    inputs = (GraphInput(source), GraphInput(index))
    return GraphNode(op_name=f"A/TupleGetItem-op{number}", op_type="TupleGetItem", inputs=inputs, runs_kernel=False)


def test_a_maker_is_found_behind_an_item_of_its_results() -> None:
    norm = GraphNode(op_name="A/LayerNorm-op0", op_type="LayerNorm")
    pair = GraphNode(
        op_name="A/MakeTuple-op0",
        op_type="MakeTuple",
        inputs=(GraphInput("Parameter.w"), GraphInput("A/TupleGetItem-op0:0")),
        runs_kernel=False,
    )
    nodes = (norm, item(0, "A/LayerNorm-op0:0", "data-0"), pair, item(1, "A/MakeTuple-op0:0", "data-1"))
    reader = GraphNode(
        op_name="A/Mul-op0",
        op_type="Mul",
        inputs=(GraphInput("A/TupleGetItem-op0:0"), GraphInput("A/TupleGetItem-op1:0")),
    )
    constants = (GraphValue("data-0", "int64", value=2), GraphValue("data-1", "int64", value=1))
    names = TrueNames((), (), Graph(graph_id=0, nodes=(*nodes, reader), constants=constants))
    assert [names.source(reader, slot) for slot in range(2)] == [GraphInput("A/LayerNorm-op0:2")] * 2


def test_an_item_without_a_known_index_has_no_maker() -> None:
    norm = GraphNode(op_name="A/LayerNorm-op0", op_type="LayerNorm")
    reader = GraphNode(op_name="A/Mul-op0", op_type="Mul", inputs=(GraphInput("A/TupleGetItem-op0:0"),))
    names = TrueNames((), (), Graph(graph_id=0, nodes=(norm, item(0, "A/LayerNorm-op0:0", "data-0"), reader)))
    assert names.source(reader, 0) is None


def test_the_elements_of_a_tuple_that_the_program_gives_are_distinguished() -> None:
    gradients = tuple(GraphInput("Parameter.gradients") for _ in range(3))
    pack = GraphNode(op_name="A/MakeTuple-op0", op_type="MakeTuple", inputs=gradients, runs_kernel=False)
    reader = GraphNode(op_name="A/SGD-op0", op_type="SGD", inputs=(GraphInput("A/TupleGetItem-op0:0"),))
    graph = Graph(
        graph_id=0,
        nodes=(pack, item(0, "A/MakeTuple-op0:0", "data-0"), reader),
        constants=(GraphValue("data-0", "int64", value=2),),
    )
    assert TrueNames((), (), graph).source(reader, 0) == GraphInput("Parameter.gradients:2")
