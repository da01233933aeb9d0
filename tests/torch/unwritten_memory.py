"""Runs CPU kernels and prints a checksum of each output: `order kernel slot checksum`.

`tests/torch/test_operators.py` runs this twice, with different bytes in newly allocated memory.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from opdump.adapters.torch.schemas import schema_of, tensors_returned


class _Checksums(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = schema_of(func)
        if not schema.kind:
            self.count += 1
            for slot, _, tensor in tensors_returned(schema, (), {}, result):
                if tensor.numel():
                    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
                    print(self.count, schema.kernel, slot, zlib.crc32(bytes(raw)))
        return result


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def _train(module: nn.Module, *inputs: Tensor) -> None:
    found = module(*inputs)
    (found[0] if isinstance(found, tuple) else found).sum().backward()


def _run() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        _train(kind(6, 8), _random(5, 3, 6))
        with torch.no_grad():
            kind(6, 8).eval()(_random(5, 3, 6))
    _train(nn.LSTMCell(6, 8), _random(3, 6))
    for causal in (False, True):
        query, key, value = (_random(2, 4, 16, 8) for _ in range(3))
        functional.scaled_dot_product_attention(query, key, value, is_causal=causal).sum().backward()
    for training in (True, False):
        _train(nn.BatchNorm2d(4).train(training), _random(3, 4, 5, 5))
        _train(nn.Dropout(0.3).train(training), _random(5, 6))
    for mode in ("sum", "mean", "max"):
        for learns in (True, False):
            bag = nn.EmbeddingBag(10, 4, mode=mode)
            bag.weight.requires_grad_(learns)
            found = bag(torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 3, 3]))
            if learns:
                found.sum().backward()
    functional.max_pool2d(_random(2, 3, 8, 8), 2).sum().backward()
    _train(nn.Conv2d(4, 4, 3), _random(2, 4, 9, 9))
    _train(nn.LayerNorm(5), _random(3, 5))
    functional.cross_entropy(_random(4, 5), torch.tensor([0, 1, -100, 2])).backward()
    losses = functional.ctc_loss(
        _random(8, 2, 5).log_softmax(2), torch.randint(1, 5, (2, 3)), torch.tensor([8, 7]), torch.tensor([3, 2])
    )
    losses.backward()
    square = torch.randn(5, 5)
    torch.linalg.svd(square)
    torch.linalg.eigh(square @ square.T)
    torch.linalg.qr(square)
    torch.linalg.lu_factor(square)
    torch.linalg.inv(square)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with _Checksums():  # type: ignore[no-untyped-call]
        _run()
