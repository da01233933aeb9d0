"""Converts tensors between the formats of Ascend devices and those of frameworks.

convert_format(array, "NC1HWC0", "NCHW", shape=(1, 3, 224, 224))     # (1, 1, 224, 224, 16): the padding is cut
convert_format(weights, "NCHW", "FRACTAL_Z", groups=32)              # zeros where the device has padding

A device format is one section of `device_formats.py`, which defines the position of the elements of a tensor, and one line in its registry.
"""

from __future__ import annotations

from opdump.formats.conversion import can_convert, convert_format
from opdump.formats.device_formats import DEVICE_FORMATS, FORMATS, PLAIN_FORMATS
from opdump.formats.placement import Reading

__all__ = ["DEVICE_FORMATS", "FORMATS", "PLAIN_FORMATS", "Reading", "can_convert", "convert_format"]
