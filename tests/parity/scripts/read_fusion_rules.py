"""Prints the result of the fusion rule parser of msaccucmp for a graph: `read_fusion_rules.py MSACCUCMP_DIRECTORY GRAPH.json`."""

import json
import sys

sys.path.insert(0, sys.argv[1])

from vector_cmp.fusion_manager.fusion_rule_parser import FusionRuleParser  # its package is on the path now

parser = FusionRuleParser(sys.argv[2])
parser.analysis_fusion_rule()
operators = {}
for name, found in parser.fusion_op_name_to_op_map.items():
    for op in found if isinstance(found, list) else [found]:
        operators[op.op_name] = {
            "group": str(name),
            "type": op.op_type,
            "inputs": op.input_list,
            "original": op.attr.original_op_names,
            "outputs": [[desc.origin_name, desc.origin_output_index] for desc in op.output_desc],
        }
print("RULES " + json.dumps({"operators": operators, "inputs": parser.input_nodes}))
