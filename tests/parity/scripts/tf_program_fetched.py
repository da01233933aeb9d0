"""The session example under stock TensorFlow: what it prints, then every tensor of one step, fetched explicitly. Without opdump.

tf_program_fetched.py EXAMPLE OPERATORS.json VALUES.npz     OPERATORS: names of operators; VALUES: their inputs and outputs in step 5
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
example, operators, values = sys.argv[1:]
source = (
    Path(example).read_text(encoding="utf-8").replace("import tensorflow as tf", "import tensorflow.compat.v1 as tf")
)
sys.argv = [example, "/nowhere"]  # stock TensorFlow does not read this path
program: dict[str, Any] = {"__name__": "__main__"}
exec(compile(source, example, "exec"), program)

graph = tf.get_default_graph()
tensors = {}
for name in json.loads(Path(operators).read_text(encoding="utf-8")):
    operation = graph.get_operation_by_name(name)
    for io, found in (("input", operation.inputs), ("output", operation.outputs)):
        # In a dump file, tensors after a handle move up.
        for slot, tensor in enumerate(each for each in found if each.dtype not in (tf.resource, tf.variant)):
            tensors[f"{name}:{io}:{slot}"] = tensor
with tf.Session() as session:
    session.run(program["init"])
    for _ in range(5):
        session.run([program["train"], program["cost"]])
    _, fetched = session.run([program["train"], tensors])
np.savez(values, **{key.replace("/", "|"): value for key, value in fetched.items()})
