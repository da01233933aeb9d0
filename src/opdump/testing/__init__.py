"""Test support for extensions: contracts to subclass, and stand-ins for a framework and a disk.

class TestMyLayout(LayoutTests):
    def layout(self):
        return MY_LAYOUT
"""

from __future__ import annotations

from opdump.testing.adapter_tests import AdapterTests
from opdump.testing.collecting_writer import CollectingWriter
from opdump.testing.fake_adapter import FakeAdapter
from opdump.testing.layout_tests import LayoutTests
from opdump.testing.sample_records import SampleStep, sample_step

__all__ = ["AdapterTests", "CollectingWriter", "FakeAdapter", "LayoutTests", "SampleStep", "sample_step"]
