"""Connects frameworks to the recorder. Except for conversions to PyTorch tensors, only this package imports frameworks."""
