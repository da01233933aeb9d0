"""A detection head in JAX: anchors, box regression with smooth L1, focal loss, hard negatives, decoded boxes, SGD."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
WIDTH, CLASSES, SIDE = 8, 3, 3
ANCHORS = SIDE * SIDE

numbers = np.random.default_rng(6)
features = numbers.normal(0, 1, (4, ANCHORS, WIDTH)).astype(np.float32)  # <features>
boxes = np.sort(numbers.uniform(0, SIDE, (4, ANCHORS, 2, 2)), axis=2).reshape(4, ANCHORS, 4).astype(np.float32)
classes = numbers.integers(0, CLASSES, (4, ANCHORS))  # <classes>


def weights(*shape):
    return jnp.asarray(numbers.normal(0, 0.3, shape), jnp.float32)


def anchors():
    rows, columns = jnp.meshgrid(jnp.arange(SIDE), jnp.arange(SIDE), indexing="ij")  # <grid>
    centres = jnp.stack([columns.ravel(), rows.ravel()], axis=-1) + 0.5  # <centres>
    return jnp.concatenate([centres, jnp.full((ANCHORS, 2), 1.2)], axis=-1)  # <anchors>


def decoded(deltas, anchor):
    centre = anchor[:, :2] + deltas[..., :2] * anchor[:, 2:]  # <decode-centre>
    size = anchor[:, 2:] * jnp.exp(jnp.clip(deltas[..., 2:], -2.0, 2.0))  # <decode-size>
    return jnp.concatenate([centre - size / 2, centre + size / 2], axis=-1)  # <corners>


def overlap(a, b):
    low = jnp.maximum(a[..., :2], b[..., :2])  # <low>
    high = jnp.minimum(a[..., 2:], b[..., 2:])  # <high>
    inner = jnp.prod(jnp.clip(high - low, 0.0), axis=-1)  # <inner>
    areas = [jnp.prod(each[..., 2:] - each[..., :2], axis=-1) for each in (a, b)]  # <areas>
    return inner / (areas[0] + areas[1] - inner + 1e-6)  # <iou>


def smooth_l1(x):
    size = jnp.abs(x)  # <size>
    return jnp.where(size < 1.0, 0.5 * x * x, size - 0.5)  # <smooth>


def loss_of(parameters, x, box, kind):
    h = jax.nn.leaky_relu(x @ parameters["stem"], 0.1)  # <stem>
    found = decoded(h @ parameters["box"], anchors())  # <found>
    quality = jax.lax.stop_gradient(overlap(found, box))  # <quality>
    logits = h @ parameters["class"] + parameters["bias"]  # <logits>
    odds = jax.nn.sigmoid(logits)  # <odds>
    wanted = jax.nn.one_hot(kind, CLASSES) * quality[..., None]  # <wanted>
    entropy = jax.nn.softplus(logits) - wanted * logits  # <entropy>
    focal = entropy * jnp.abs(wanted - odds) ** 2.0  # <focal>
    hardest = jnp.sort(focal.sum(axis=-1), axis=-1)[:, -6:]  # <hardest>
    regression = smooth_l1(found - box).sum(axis=-1)  # <regression>
    return hardest.mean() + 0.5 * jnp.mean(regression * (quality > 0.05))  # <loss>


def train_step(parameters, x, box, kind):
    loss, gradients = value_and_grad(parameters, x, box, kind)  # <gradient>
    return jax.tree.map(lambda p, g: p - 0.2 * g, parameters, gradients), loss  # <update>


value_and_grad = jax.value_and_grad(loss_of)
if MODE == "grad":
    value_and_grad = jax.jit(value_and_grad)
if MODE == "jit":
    train_step = jax.jit(train_step)

parameters = {
    "stem": weights(WIDTH, WIDTH),
    "box": weights(WIDTH, 4),
    "class": weights(WIDTH, CLASSES),
    "bias": jnp.full(CLASSES, -1.0),
}
for step in range(2):
    part = slice(2 * step, 2 * step + 2)  # <part>
    given = (jnp.asarray(each[part]) for each in (features, boxes, classes))  # <given>
    parameters, loss = train_step(parameters, *given)  # <call>
    print(f"step {step} loss {float(loss)!r}")
