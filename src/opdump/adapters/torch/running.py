"""The state of an operator while it runs."""

from __future__ import annotations

from opdump.adapters.torch.naming import Link
from opdump.adapters.torch.sites import Site
from opdump.recorder import LiveTensor
from opdump.records import OpRecord


class Running:
    """An operator, from just before it runs until just after."""

    __slots__ = ("inputs", "link", "op", "site")

    def __init__(self, op: OpRecord, site: Site, link: Link | None) -> None:
        self.op = op
        self.site = site
        self.link = link
        self.inputs: list[LiveTensor] = []
