"""A classifier of images: convolutions, batch normalisation, pooling and a residual block."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MODE = "disabled"  # <mode>

random = np.random.default_rng(1)
nodes, weights = [], []


def fixed(name, value, dtype=np.float32):
    weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name


def weight(name, *shape, scale=0.3):
    return fixed(name, random.standard_normal(shape) * scale)


def op(kind, *inputs, name, outputs=1, **attributes):
    made = [name] if outputs == 1 else [f"{name}.{number}" for number in range(outputs)]
    nodes.append(helper.make_node(kind, inputs, made, name, **attributes))
    return made[0] if outputs == 1 else made


def unit(x, name, channels_in, channels, **attributes):
    x = op(
        "Conv", x, weight(f"{name}.kernel", channels, channels_in, 3, 3), name=f"{name}/conv", **attributes
    )  # <conv>
    facts = [
        fixed(f"{name}.{each}", value)
        for each, value in (
            ("scale", 1 + random.random(channels)),
            ("shift", random.random(channels) - 0.5),
            ("mean", random.random(channels) - 0.5),
            ("variance", 0.01 + random.random(channels)),
        )
    ]  # <facts>
    x = op("BatchNormalization", x, *facts, name=f"{name}/norm", epsilon=1e-5)  # <norm>
    return op("Relu", x, name=f"{name}/relu")  # <relu>


x = op("Div", "images", fixed("range", 255.0), name="scaled")  # <scaled>
x = op("Sub", x, fixed("center", [[[0.48]], [[0.45]], [[0.4]]]), name="centered")  # <centered>
x = unit(x, "stem", 3, 8, pads=[1, 1, 1, 1], strides=[2, 2])  # <stem>
x = op("MaxPool", x, name="pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])  # <pool>
h = unit(x, "first", 8, 8, pads=[1, 1, 1, 1])  # <first>
h = unit(h, "second", 8, 8, pads=[2, 2, 2, 2], dilations=[2, 2])  # <second>
x = op("Sub", x, h, name="residual")  # <residual>
x = op("LeakyRelu", x, name="leaky", alpha=0.1)  # <leaky>
x = op("AveragePool", x, name="average", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0)  # <average>
x = op("GlobalAveragePool", x, name="whole")  # <whole>
x = op("Flatten", x, name="flat")  # <flat>
x = op("Gemm", x, weight("head.weight", 8, 10), weight("head.bias", 10), name="head")  # <head>
shares = op("Softmax", x, name="shares", axis=1)  # <shares>

real = TensorProto.FLOAT
graph = helper.make_graph(
    nodes,
    "convnet",
    [helper.make_tensor_value_info("images", real, [2, 3, 24, 24])],
    [helper.make_tensor_value_info(value, real, None) for value in (shares,)],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
options = onnxruntime.SessionOptions()
levels = onnxruntime.GraphOptimizationLevel
options.graph_optimization_level = {"disabled": levels.ORT_DISABLE_ALL, "all": levels.ORT_ENABLE_ALL}[MODE]
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
for step in range(2):
    images = random.random((2, 3, 24, 24)) * 255  # <images>
    feeds = {"images": images.astype(np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
