"""A detection head: anchors, box regression with smooth L1, focal loss, hard negatives, decoded boxes, SGD."""

import modes
import numpy as np
import tensorflow as tf

MODE = "function"  # <mode>
WIDTH, CLASSES, SIDE = 8, 3, 3
ANCHORS = SIDE * SIDE

modes.begin(MODE)
random = np.random.default_rng(6)
features = random.normal(0, 1, (4, ANCHORS, WIDTH)).astype("float32")  # <features>
boxes = np.sort(random.uniform(0, SIDE, (4, ANCHORS, 2, 2)), axis=2).reshape(4, ANCHORS, 4).astype("float32")  # <boxes>
classes = random.integers(0, CLASSES, (4, ANCHORS)).astype("int32")  # <classes>


def weight(name, *shape):
    return tf.Variable(random.normal(0, 0.3, shape).astype("float32"), name=name)


stem, of_boxes, of_classes = weight("stem", WIDTH, WIDTH), weight("boxes", WIDTH, 4), weight("classes", WIDTH, CLASSES)
bias = tf.Variable(tf.fill([CLASSES], -1.0), name="bias")
weights = [stem, of_boxes, of_classes, bias]


def anchors():
    rows, columns = tf.meshgrid(tf.range(3.0), tf.range(3.0), indexing="ij")  # <grid>
    centres = tf.stack([tf.reshape(columns, [-1]), tf.reshape(rows, [-1])], axis=-1) + 0.5  # <centres>
    return tf.concat([centres, tf.fill([ANCHORS, 2], 1.2)], axis=-1)  # <anchors>


def decoded(deltas, anchor):
    centre = anchor[:, :2] + deltas[..., :2] * anchor[:, 2:]  # <decode-centre>
    size = anchor[:, 2:] * tf.exp(tf.clip_by_value(deltas[..., 2:], -2.0, 2.0))  # <decode-size>
    return tf.concat([centre - size / 2.0, centre + size / 2.0], axis=-1)  # <corners>


def overlap(a, b):
    low = tf.maximum(a[..., :2], b[..., :2])  # <low>
    high = tf.minimum(a[..., 2:], b[..., 2:])  # <high>
    inner = tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)  # <inner>
    areas = [tf.reduce_prod(each[..., 2:] - each[..., :2], axis=-1) for each in (a, b)]  # <areas>
    return inner / (areas[0] + areas[1] - inner + 1e-6)  # <iou>


def smooth_l1(x):
    size = tf.abs(x)  # <size>
    return tf.where(size < 1.0, 0.5 * x * x, size - 0.5)  # <smooth>


def loss_of(x, box, kind):
    h = tf.nn.leaky_relu(tf.tensordot(x, stem, 1), 0.1)  # <stem>
    found = decoded(tf.tensordot(h, of_boxes, 1), anchors())  # <found>
    quality = tf.stop_gradient(overlap(found, box))  # <quality>
    logits = tf.tensordot(h, of_classes, 1) + bias  # <logits>
    odds = tf.sigmoid(logits)  # <odds>
    wanted = tf.one_hot(kind, CLASSES) * quality[..., None]  # <wanted>
    entropy = tf.nn.softplus(logits) - wanted * logits  # <entropy>
    focal = entropy * tf.abs(wanted - odds) ** 2.0  # <focal>
    hardest = tf.sort(tf.reduce_sum(focal, axis=-1), axis=-1)[:, -6:]  # <hardest>
    regression = tf.reduce_sum(smooth_l1(found - box), axis=-1)  # <regression>
    near = tf.cast(quality > 0.05, tf.float32)  # <near>
    return tf.reduce_mean(hardest) + 0.5 * tf.reduce_mean(regression * near)  # <loss>


def step(x, box, kind):
    with tf.GradientTape() as tape:
        loss = loss_of(x, box, kind)
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")  # <gradient>
    updates = [each.assign_sub(0.2 * gradient) for each, gradient in zip(weights, gradients)]  # <update>
    with tf.control_dependencies(updates):
        return tf.identity(loss)


parts = [slice(2 * number, 2 * number + 2) for number in range(2)]  # <parts>
modes.train(MODE, step, [(features[part], boxes[part], classes[part]) for part in parts])
