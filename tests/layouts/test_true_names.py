"""Which operator of a graph is meant by the name of a file, and what its lines are."""

from __future__ import annotations

from opdump.graph import Graph, GraphInput, GraphNode
from opdump.layouts.mindspore_sync.program_lines import program_stack
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.records import Frame

LIBRARY = "/opt/lib/python3.11/site-packages/mindspore/nn/wrap/cell_wrapper.py"


def names_of(*nodes: str) -> TrueNames:
    graph = Graph(graph_id=0, nodes=tuple(GraphNode(op_name=name, op_type=name.rpartition("/")[2]) for name in nodes))
    return TrueNames((), (), graph)


def matched(graph: tuple[str, ...], files: tuple[str, ...]) -> dict[str, str]:
    return {name: node.op_name for name, node in names_of(*graph).nodes(files).items()}


def test_equal_names_are_the_same_operator() -> None:
    assert matched(("A/Add-op1", "A/Add-op0"), ("A/Add-op0",)) == {"A/Add-op0": "A/Add-op0"}


def test_operators_of_one_scope_under_other_numbers_are_matched_in_their_order() -> None:
    found = matched(("A/Add-op12", "A/Add-op3", "B/Add-op4"), ("A/Add-op1", "A/Add-op0"))
    assert found == {"A/Add-op0": "A/Add-op3", "A/Add-op1": "A/Add-op12"}


def test_those_that_have_their_name_are_taken_before_others_are_matched() -> None:
    found = matched(("A/Add-op1", "A/Add-op2"), ("A/Add-op0", "A/Add-op1"))
    assert found == {"A/Add-op1": "A/Add-op1", "A/Add-op0": "A/Add-op2"}


def test_more_names_than_operators_are_not_matched() -> None:
    assert matched(("A/Add-op5",), ("A/Add-op0", "A/Add-op1")) == {}


def test_a_parameter_is_found_behind_the_operators_that_load_it() -> None:
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
