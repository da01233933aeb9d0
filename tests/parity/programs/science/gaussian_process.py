"""An exact Gaussian process of gpytorch: Cholesky factors, lazily evaluated kernels."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch

from tests.parity.training_run import trained


class Process(gpytorch.models.ExactGP):  # type: ignore[misc, unused-ignore]
    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


def program() -> Any:
    x = torch.linspace(0, 1, 12)
    y = torch.sin(6 * x) + 0.1 * torch.randn(12)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y, likelihood)
    model.train()
    margin = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    learned = trained(model, lambda: -margin(model(x), y), steps=3)
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        told = likelihood(model(torch.linspace(0, 1, 5)))
        return learned, told.mean, told.variance
