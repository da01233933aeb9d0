"""Writes and reads graph files like those that the graph engine of Ascend devices writes beside a dump.

    ge_proto_00001_Build.txt         ge.proto.ModelDef in protobuf's text format
    ge_proto_00001_Build.txt.json    the same as JSON, which comparison tools read in its place

It has the names of the original model's operators (`_datadump_original_op_names`), the place of a tensor in that model
(`_datadump_origin_name`), and the operators that leave no data because no task runs them (`_no_task`). For a training program
it shows which model of the dump is the training: the one whose graph `is_computational`.

See docs/tensorflow-graph.md#the-files.
"""

from __future__ import annotations

from opdump.layouts.graph_files.ge.graph import (
    COMPUTE_GRAPH,
    GRAPH_NAME,
    GeGraph,
    GeOperator,
    GeOrigin,
    GeTensor,
    Naming,
    WrittenGraph,
    is_computational,
    update_of,
    write_ge_graph,
    write_new_ge_graph,
)
from opdump.layouts.graph_files.ge.reading import (
    NOTES_NAME,
    GraphNote,
    is_graph_name,
    note_graph,
    read_ge_graph,
    read_notes,
    root_name,
)

__all__ = [
    "COMPUTE_GRAPH",
    "GRAPH_NAME",
    "NOTES_NAME",
    "GeGraph",
    "GeOperator",
    "GeOrigin",
    "GeTensor",
    "GraphNote",
    "Naming",
    "WrittenGraph",
    "is_computational",
    "is_graph_name",
    "note_graph",
    "read_ge_graph",
    "read_notes",
    "root_name",
    "update_of",
    "write_ge_graph",
    "write_new_ge_graph",
]
