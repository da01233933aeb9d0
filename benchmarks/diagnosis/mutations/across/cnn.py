"""Faults of the convolutional network in four frameworks, images in two layouts."""

from benchmarks.diagnosis.suite import InEach, Side

FAULTS = (
    InEach(
        "argument",
        "epsilon of the norms",
        torch=Side("norm-init", "1e-5", "1e-2", "norm: native_batch_norm|_native_batch_norm_legit"),
        jax=Side("norm", "1e-5", "1e-2", "norm: *"),
        tensorflow=Side("norm", "1e-5", "1e-2", "norm: FusedBatchNormV3"),
        mindspore=Side("norm-init", "1e-5", "1e-2", "norm: BatchNorm"),
    ),
    InEach(
        "missing",
        "a residual",
        torch=Side("residual", "x + ", "", "residual: *"),
        jax=Side("residual", "x + ", "", "residual: *"),
        tensorflow=Side("residual", "x + ", "", "residual: *"),
        mindspore=Side("residual", "x + ", "", "residual: *; *: Add"),
    ),
    InEach(
        "formula",
        "average for maximum",
        torch=Side("pool", "max_pool2d", "avg_pool2d", "pool: *"),
        jax=Side("pool", "-jnp.inf, jax.lax.max", "0.0, jax.lax.add", "pool: *; average: *"),
        tensorflow=Side("pool", "max_pool2d", "avg_pool2d", "pool: *"),
        mindspore=Side("pool-init", "MaxPool2d", "AvgPool2d", "pool: *"),
    ),
    InEach(
        "missing",
        "no activation",
        torch=Side("relu1", "F.relu(self.first(x))", "self.first(x)", "relu1: *; conv: convolution"),
        jax=Side("relu1", 'jax.nn.relu(block(x, w["first"]))', 'block(x, w["first"])', "relu1: *; conv: *"),
        tensorflow=Side("relu1", "tf.nn.relu(first(x))", "first(x)", "relu1: *; conv: Conv2D"),
        mindspore=Side("relu1", "ops.relu(self.first(x))", "self.first(x)", "relu1: *; conv: Conv2D"),
    ),
    InEach(
        "formula",
        "another activation",
        torch=Side("residual", "F.relu(", "F.leaky_relu(", "residual: *"),
        jax=Side("residual", "jax.nn.relu(", "jax.nn.leaky_relu(", "residual: *"),
        tensorflow=Side("residual", "tf.nn.relu(", "tf.nn.leaky_relu(", "residual: *"),
        mindspore=Side("residual", "ops.relu(", "ops.elu(", "residual: *"),
    ),
    InEach(
        "order",
        "rows the other way round",
        torch=Side("conv", "self.conv(x)", "self.conv(x.flip(2))", "conv: *"),
        jax=Side("conv", "(x, w", "(jnp.flip(x, 1), w", "conv: *"),
        tensorflow=Side("conv", "(x, self", "(tf.reverse(x, [1]), self", "conv: *"),
        mindspore=Side("conv", "self.conv(x)", "self.conv(ops.flip(x, (2,)))", "conv: *"),
    ),
    InEach(
        "missing",
        "no smoothing",
        torch=Side("loss", "label_smoothing=0.1", "label_smoothing=0.0", "loss: *"),
        jax=Side("smooth", " * 0.9 + 0.1 / CLASSES", "", "smooth,loss: *"),
        tensorflow=Side("smooth", " * 0.9 + 0.1 / CLASSES", "", "smooth,loss: *"),
        mindspore=Side("loss", "label_smoothing=0.1", "label_smoothing=0.0", "loss: *"),
    ),
    InEach(
        "argument",
        "averaged over one axis too few",
        torch=Side("average", "x.mean((2, 3))", "x.amax(3).mean(2)", "average: *"),
        jax=Side("average", "jnp.mean(x, axis=(1, 2))", "jnp.mean(jnp.max(x, axis=2), axis=1)", "average: *"),
        tensorflow=Side(
            "average",
            "tf.reduce_mean(x, axis=[1, 2])",
            "tf.reduce_mean(tf.reduce_max(x, axis=2), axis=1)",
            "average: *",
        ),
        mindspore=Side("average", "ops.mean(x, (2, 3))", "ops.mean(ops.amax(x, 3), 2)", "average: *"),
    ),
    InEach(
        "data",
        "the images of the other part",
        torch=Side("part", "4 * step, 4 * step + 4", "4 - 4 * step, 8 - 4 * step", "conv: convolution; loss: *"),
        jax=Side("part", "4 * step, 4 * step + 4", "4 - 4 * step, 8 - 4 * step", "conv,smooth,loss,call: *"),
        tensorflow=Side(
            "part", "4 * step, 4 * step + 4", "4 - 4 * step, 8 - 4 * step", "conv: Conv2D; smooth,loss,call: *"
        ),
        mindspore=Side("part", "4 * step, 4 * step + 4", "4 - 4 * step, 8 - 4 * step", "conv: Conv2D; loss: *"),
    ),
    InEach(
        "optimizer",
        "another learning rate",
        torch=Side("optimizer", "lr=0.05", "lr=0.06", "update: * @*"),
        jax=Side("update", "0.05", "0.06", "update: * @*"),
        tensorflow=Side("update", "0.05", "0.06", "update: * @*"),
        mindspore=Side("optimizer", "0.05", "0.06", "update: * @*"),
    ),
)
