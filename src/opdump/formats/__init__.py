"""Device formats: how the elements of a tensor lie in the memory of an Ascend device, and back to the framework's order."""
