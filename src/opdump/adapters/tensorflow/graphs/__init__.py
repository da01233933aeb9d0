"""Graphs of TensorFlow: the program's, the runtime's, and the relation between their operators."""
