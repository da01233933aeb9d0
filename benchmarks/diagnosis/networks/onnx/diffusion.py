"""A step of a diffusion model: time embedding, group normalisation, down- and upsampling, and the update of the sample."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MODE = "disabled"  # <mode>

random = np.random.default_rng(4)
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


WIDTH = 8

angles = op(
    "Mul", "time", fixed("rates", np.exp(-np.log(100.0) * np.arange(WIDTH // 2) / (WIDTH // 2))), name="angles"
)  # <angles>
sines, cosines = op("Sin", angles, name="sines"), op("Cos", angles, name="cosines")  # <waves>
waves = op("Concat", sines, cosines, name="waves", axis=-1)  # <concat>
t = op("Gemm", waves, weight("time.weight", WIDTH, WIDTH), weight("time.bias", WIDTH), name="time/linear")  # <time>
t = op("Mul", t, op("Sigmoid", t, name="time/sigmoid"), name="time/silu")  # <time-silu>
t = op("Reshape", t, fixed("per_channel", [-1, WIDTH, 1, 1], np.int64), name="time/shaped")


def unit(x, name, channels_in):
    x = op(
        "Conv", x, weight(f"{name}.kernel", WIDTH, channels_in, 3, 3), name=f"{name}/conv", pads=[1, 1, 1, 1]
    )  # <conv>
    scale, shift = (
        fixed(f"{name}.scale", 1 + 0.1 * random.random(WIDTH)),
        fixed(f"{name}.shift", 0.1 * random.random(WIDTH)),
    )
    x = op("GroupNormalization", x, scale, shift, name=f"{name}/norm", epsilon=1e-5, num_groups=2)  # <norm>
    return op("Mul", x, op("Sigmoid", x, name=f"{name}/sigmoid"), name=f"{name}/silu")  # <silu>


h = unit("x", "first", 2)
h = op("Add", h, t, name="with_time")  # <with-time>
skip = h
h = op("AveragePool", h, name="down", kernel_shape=[2, 2], strides=[2, 2])  # <down>
h = unit(h, "middle", WIDTH)
h = op("Resize", h, "", fixed("factors", [1.0, 1.0, 2.0, 2.0]), name="up", mode="nearest")  # <up>
h = op("Concat", h, skip, name="joined", axis=1)  # <joined>
h = unit(h, "last", 2 * WIDTH)
noise = op("Conv", h, weight("out.kernel", 2, WIDTH, 1, 1), weight("out.bias", 2), name="noise")  # <noise>
step_size = op("Mul", noise, fixed("rate", 0.3), name="share")  # <share>
clean = op("Sub", "x", step_size, name="clean")  # <clean>
sample = op("Mul", clean, fixed("gain", 1 / np.sqrt(0.9)), name="sample")  # <sample>
sample = op("Clip", sample, fixed("least", -3.0), fixed("most", 3.0), name="bounded")  # <bounded>

real = TensorProto.FLOAT
graph = helper.make_graph(
    nodes,
    "diffusion",
    [helper.make_tensor_value_info("x", real, [2, 2, 8, 8]), helper.make_tensor_value_info("time", real, [2, 1])],
    [helper.make_tensor_value_info(value, real, None) for value in (sample,)],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
options = onnxruntime.SessionOptions()
levels = onnxruntime.GraphOptimizationLevel
options.graph_optimization_level = {"disabled": levels.ORT_DISABLE_ALL, "all": levels.ORT_ENABLE_ALL}[MODE]
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
for step in range(2):
    image = random.standard_normal((2, 2, 8, 8)).astype(np.float32)  # <image>
    feeds = {"x": image, "time": np.array([[10.0], [40.0]], np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
