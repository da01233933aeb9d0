"""MindSpore programs."""
