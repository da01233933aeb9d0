"""Graphs of TensorFlow: what the program has, what the runtime executes, and what became of each operator on the way."""
