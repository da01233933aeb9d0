"""Test support for extensions: contracts to subclass, and stand-ins for a framework and a disk.

class TestMyLayout(LayoutTests):
    def layout(self):
        return MY_LAYOUT
"""

from __future__ import annotations

from opdump.testing.adapter_tests import AdapterTests
from opdump.testing.layout_tests import LayoutTests
from opdump.testing.stand_ins import CollectingWriter, SampleStep, sample_step

__all__ = ["AdapterTests", "CollectingWriter", "LayoutTests", "SampleStep", "sample_step"]
