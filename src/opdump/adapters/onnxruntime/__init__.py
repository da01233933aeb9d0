"""ONNX Runtime: every tensor of a run as an extra output of that run, handed to a recorder node by node."""
