"""PyTorch: what runs is seen by a dispatch mode; which step, graph and module it belongs to, by `training`."""
