"""Runs training steps in a mode of TensorFlow: in a function, eagerly, in a session, or in Keras."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def begin(mode):
    """Must run before the first tensor."""
    if mode == "session":
        v1.disable_eager_execution()


def train(mode, step, batches):
    """Run `step`, which returns the loss, on each batch, a tuple of arrays of equal shapes."""
    if mode == "session":
        given = [v1.placeholder(each.dtype, each.shape) for each in batches[0]]
        loss = step(*given)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for number, batch in enumerate(batches):
                show(number, session.run(loss, dict(zip(given, batch))))
    elif mode == "keras":

        class Network(tf.keras.Model):
            def train_step(self, batch):
                return {"loss": step(*batch)}

        network = Network()
        network.compile(jit_compile=False)
        shown = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda number, logs: show(number, logs["loss"]))
        arrays = [*map(np.concatenate, zip(*batches))]
        data = tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(len(batches[0][0]))
        network.fit(data, shuffle=False, verbose=0, callbacks=[shown])
    else:
        run = tf.function(step) if mode == "function" else step
        for number, batch in enumerate(batches):
            show(number, run(*map(tf.constant, batch)))


def show(number, loss):
    print(f"step {number} loss {float(loss)!r}")
