"""Builds the models of the networks, operator by operator, and opens their sessions."""

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper


class Model:
    def __init__(self, seed, scale=0.3):
        self.random = np.random.default_rng(seed)
        self.scale = scale
        self.nodes, self.weights = [], []

    def fixed(self, name, value, dtype=np.float32):
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name, *shape, scale=None):
        scale = self.scale if scale is None else scale
        return self.fixed(name, self.random.standard_normal(shape) * scale)

    def op(self, kind, *inputs, name, outputs=1, **attributes):
        made = [name] if outputs == 1 else [f"{name}.{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, made, name, **attributes))
        return made[0] if outputs == 1 else made

    def session(self, mode, inputs, outputs, opset=21):
        """A session of the model. `inputs` are tuples of name, element type and shape; `outputs` are names."""
        given = [self._value(*each) for each in inputs]
        results = [self._value(name, np.float32, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "network", given, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        options = onnxruntime.SessionOptions()
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = {"disabled": levels.ORT_DISABLE_ALL, "all": levels.ORT_ENABLE_ALL}[mode]
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def _value(self, name, dtype, shape):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
