"""Records TensorFlow: sessions and estimators, `tf.function` and Keras, eager programs. All modules that import tensorflow are here."""
