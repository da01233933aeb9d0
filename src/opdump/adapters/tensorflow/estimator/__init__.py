"""Estimators: those of the NPU adapter and TensorFlow's own."""
