"""A runtime whose tensors lie in the memory of this process, as a recording asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from opdump.adapters.host.reader import NumpyReader
from opdump.plan import DumpPlan


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """Its name, its version, and the kind of device that operators run on."""

    framework: str
    framework_version: str
    device_target: str

    def reader(self, plan: DumpPlan) -> NumpyReader:
        """A reader that takes what the plan wants of a tensor."""
        return NumpyReader.of_plan(plan)
