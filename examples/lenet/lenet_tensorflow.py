"""LeNet in TensorFlow: opdump run -c data_dump.json lenet_tensorflow.py. Its CPU kernels need channels last."""

from __future__ import annotations

import keras
import lenet_data
import tensorflow as tf

layers = keras.layers
network = keras.Sequential(
    [
        keras.Input((32, 32, 1)),
        layers.Conv2D(6, 5, name="conv1"),
        layers.ReLU(),
        layers.MaxPooling2D(2),
        layers.Conv2D(16, 5, name="conv2"),
        layers.ReLU(),
        layers.MaxPooling2D(2),
        layers.Permute((3, 1, 2)),  # channels first, like the weights of fc1
        layers.Flatten(),
        layers.Dense(120, name="fc1"),
        layers.ReLU(),
        layers.Dense(84, name="fc2"),
        layers.ReLU(),
        layers.Dense(10, name="fc3"),
    ]
)
for layer, parameters in lenet_data.weights().items():
    weight = parameters["weight"]
    kernel = weight.T if weight.ndim == 2 else weight.transpose(2, 3, 1, 0)
    network.get_layer(layer).set_weights([kernel, parameters["bias"]])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(lenet_data.LEARNING_RATE, momentum=lenet_data.MOMENTUM)
optimizer.build(network.trainable_variables)


@tf.function
def train(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, network(images, training=True))
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    return loss


for images, labels in lenet_data.batches():
    loss = train(tf.constant(images.transpose(0, 2, 3, 1)), tf.constant(labels))
    print(f"loss {loss:.6f}")
