from __future__ import annotations

from typing import Any

import torch

from opdump.adapters.base import Adapter
from opdump.adapters.torch.adapter import ADAPTER
from opdump.testing.adapter_tests import AdapterTests, Array


class TestTorchAdapter(AdapterTests):
    def adapter(self) -> Adapter:
        return ADAPTER

    def tensor(self, array: Array) -> Any:
        return torch.from_numpy(array)

    def array(self, tensor: Any) -> Array:
        array: Array = tensor.numpy()
        return array

    def multiply(self, one: Any, other: Any) -> Any:
        return one * other

    def add_in_place(self, tensor: Any, other: Any) -> None:
        tensor.add_(other)

    def view(self, tensor: Any) -> Any:
        return tensor.view(-1)
