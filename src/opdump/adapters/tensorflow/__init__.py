"""Records TensorFlow: sessions and estimators, `tf.function` and Keras, eager programs. What imports tensorflow lies here."""
