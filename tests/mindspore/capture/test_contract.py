"""The contract of every adapter, for MindSpore operators that run one by one."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import ops

from opdump.adapters.base import Adapter
from opdump.adapters.mindspore.adapter import ADAPTER
from opdump.testing import AdapterTests

Array = npt.NDArray[Any]


class TestMindsporeAdapter(AdapterTests):
    def adapter(self) -> Adapter:
        return ADAPTER

    def tensor(self, array: Array) -> Any:
        return ms.Tensor(array)

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor.asnumpy())

    def multiply(self, one: Any, other: Any) -> Any:
        result = ops.logical_and(one, other) if one.dtype == ms.bool_ else ops.mul(one, other)
        result.asnumpy()  # MindSpore raises an operator's error when the result is read
        return result

    def add_in_place(self, tensor: Any, other: Any) -> None:
        tensor.add_(other)

    def view(self, tensor: Any) -> Any:
        return tensor.view(-1)
