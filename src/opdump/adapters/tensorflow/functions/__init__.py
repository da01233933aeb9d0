"""`tf.function`, Keras and eager code."""
