"""Records models of ONNX Runtime: the tensors of a run become outputs of that run, and are passed to a recorder node by node."""
