from __future__ import annotations

from typing import Any

import numpy as np

from opdump.adapters.base import Adapter
from opdump.testing.adapter_tests import AdapterTests, Array
from tests.adapters.fake_adapter import FakeAdapter


class TestFakeAdapter(AdapterTests):
    """An adapter without a framework passes the contract, so the contract needs nothing that only PyTorch has."""

    def adapter(self) -> Adapter:
        self._fake = FakeAdapter()
        return self._fake

    def tensor(self, array: Array) -> Any:
        return array

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def multiply(self, one: Any, other: Any) -> Any:
        return self._running().run("Mul", np.multiply, one, other)

    def add_in_place(self, tensor: Any, other: Any) -> None:
        self._running().run("AssignAdd", np.add, tensor, other, into=tensor)

    def view(self, tensor: Any) -> Any:
        return self._running().run("Reshape", np.ravel, tensor, skip="view")

    def _running(self) -> FakeAdapter:
        return getattr(self, "_fake", None) or FakeAdapter()
