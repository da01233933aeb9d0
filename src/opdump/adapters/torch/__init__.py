"""Captures PyTorch programs: operators in a dispatch mode, steps, graphs and modules in `training`."""
