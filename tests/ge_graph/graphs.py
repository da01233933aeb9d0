"""Graphs that tests write: those of a training program, and a file in the form that a device writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opdump.layouts.graph_files.ge import GeGraph, GeOperator, GeOrigin, GeTensor


def graph(name: str, *op_types: str, attributes: Mapping[str, Any] | None = None) -> GeGraph:
    """A graph of a chain of operators of these types."""
    names = [f"{op_type.lower()}_{place}" for place, op_type in enumerate(op_types)]
    operators = tuple(
        GeOperator(
            name=names[place],
            op_type=op_type,
            inputs=(f"{names[place - 1]}:0", f"{names[0]}:-1") if place else (),
            input_tensors=(GeTensor("float32", (2, -1)),) if place else (),
            input_names=("x",) if place else (),
            constant_inputs=(False,) if place else (),
            outputs=(GeTensor("float32", (2, -1)), GeTensor("int64")),
            origins=(GeOrigin(names[place], 0), GeOrigin(names[place], 1)),
            original_names=(names[place],),
            attributes={
                "T": "float32",
                "N": 0,
                "transpose": False,
                "rate": 0.5,
                "strides": [1, 2],
                "names": ["a", "b"],
            },
        )
        for place, op_type in enumerate(op_types)
    )
    return GeGraph(name=name, operators=operators, attributes=attributes or {})


OF_A_DEVICE: Final = r"""# written by a graph engine
graph {
  name: "ge_default_20200808163719_121"
  input: "IteratorV2:0"
  op {
    name: "IteratorV2"
    type: "IteratorV2"
    attr {
      key: "_datadump_original_op_names"
      value { list { val_type: VT_LIST_STRING } }
    }
    attr {
      key: "value"
      value {
        t {
          desc { name: "weights" dtype: DT_FLOAT16 layout: "NCHW" shape { dim: [3, 0x4] } }
          data: "\000\377\"}{ \x41\101"
        }
      }
    }
    attr { key: "op_para_size" value { i: -9223372036854775808 } }
    attr < key: "scale" value: < f: 1.5e-3f > >
    attr { key: "low" value { f: -inf } }
    attr { key: "expr" value { expression: "s0 + 1" } }
    id: 4
    stream_id: -1
    workspace: [0, 512]
    not_yet_invented { deep { deeper: 1 }; 17: "by number", [ge.proto.ext] { x: 1 } }
    output_desc {
      dtype: DT_BF16
      shape { dim: 1 dim: -1 }
      layout: "NC1HWC0"
      cmps_size: 12
      attr { key: "_datadump_origin_name" value { s: "Iterator" 'V2' } }
      attr { key: "_datadump_origin_output_index" value { i: 0 } }
    }
    output_desc { dtype: 9999 shape { dim: -2 } }
  }
  op { name: "conv\303\274" type: "Conv2D" input: "IteratorV2:0" input: "" input: "IteratorV2:-1" is_input_const: [false, true] }
}
graph { name: "sub" }
attr { key: "om_info_list" value { list { i: 1 i: 2 } } }
"""
"""Unknown fields, lists in brackets, escapes, strings in parts: features that the text format allows."""
