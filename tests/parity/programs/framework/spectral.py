"""Complex numbers: Fourier layers, short-time transforms, linear algebra with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.training_run import trained


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 5, dtype=torch.cfloat) * 0.3)
        self.mix = nn.Conv1d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.einsum("bif,iof->bof", torch.fft.rfft(x)[..., :5], self.weight)
        return torch.fft.irfft(spectrum, n=x.shape[-1]) + self.mix(x)


def program() -> Any:
    model, signals = Spectral(), torch.randn(2, 3, 16)
    learned = trained(model, lambda: model(signals).square().mean())
    matrix = torch.randn(4, 4, requires_grad=True)
    positive = matrix @ matrix.T + torch.eye(4)
    total = (
        torch.linalg.slogdet(positive)[1] + torch.linalg.svdvals(matrix).sum() + torch.linalg.eigh(positive)[0].prod()
    )
    total = total + torch.linalg.solve(positive, matrix).sum() + torch.linalg.qr(matrix)[1].diagonal().abs().sum()
    total.backward()
    window = torch.hann_window(8)
    heard = torch.stft(signals[0], 8, window=window, return_complex=True)
    return learned, total, matrix.grad, heard.abs(), torch.istft(heard, 8, window=window)
