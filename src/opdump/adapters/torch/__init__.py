"""Captures PyTorch programs. A dispatch mode (`dispatch`) records operators; `training` finds steps, graphs and modules."""
