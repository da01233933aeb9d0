"""A classifier of images: convolutions, batch normalisation, pooling and a residual block."""

import numpy as np
from model import Model

MODE = "disabled"  # <mode>

model = Model(seed=1)
random, fixed, weight, op = model.random, model.fixed, model.weight, model.op


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

session = model.session(MODE, [("images", np.float32, [2, 3, 24, 24])], [shares])
for step in range(2):
    images = random.random((2, 3, 24, 24)) * 255  # <images>
    feeds = {"images": images.astype(np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
