"""The graph of an offline model, as the graph engine of Ascend devices writes it beside a dump.

    ge_proto_00001_Build.txt         ge.proto.ModelDef in protobuf's text format
    ge_proto_00001_Build.txt.json    the same as JSON, which comparison tools read in its place

It tells under which names the operators of the original model run (`_datadump_original_op_names`), where a tensor stood in it
(`_datadump_origin_name`), and which operators leave no data because no task runs them (`_no_task`).

Source: section 9 of the document on the TensorFlow adapter's dump.
"""

from __future__ import annotations

from opdump.layouts.ge_graph.files import GRAPH_NAME, write_ge_graph
from opdump.layouts.ge_graph.graph import GeGraph, GeOperator, GeOrigin, GeTensor

__all__ = ["GRAPH_NAME", "GeGraph", "GeOperator", "GeOrigin", "GeTensor", "write_ge_graph"]
