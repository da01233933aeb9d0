"""Records models of ONNX Runtime: the tensors of a run are outputs of that run, and go to a recorder node by node."""
