"""A step of a diffusion model: time embedding, group normalisation, down- and upsampling, and the update of the sample."""

import numpy as np
from model import Model

MODE = "disabled"  # <mode>

model = Model(seed=4)
random, fixed, weight, op = model.random, model.fixed, model.weight, model.op


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

session = model.session(MODE, [("x", np.float32, [2, 2, 8, 8]), ("time", np.float32, [2, 1])], [sample])
for step in range(2):
    image = random.standard_normal((2, 2, 8, 8)).astype(np.float32)  # <image>
    feeds = {"x": image, "time": np.array([[10.0], [40.0]], np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
