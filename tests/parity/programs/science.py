"""Graphs, Gaussian processes and differential equations: einops, gpytorch, torch-geometric and torchdiffeq."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.parity.training_run import left_behind, trained


def einops_mixer() -> Any:
    """A mixer written with einops: rearranged, reduced and repeated tensors, and einops layers."""
    from einops import einsum, rearrange, reduce, repeat
    from einops.layers.torch import EinMix, Rearrange, Reduce

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4)
            self.mix = EinMix("b n d -> b n e", weight_shape="d e", bias_shape="e", d=48, e=8)
            self.pool = Reduce("b n d -> b d", "max")
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = einsum(self.mix(self.cut(images)), self.weight, "b n d, d e -> b n e")
            heads = rearrange(x, "b n (h d) -> b h n d", h=2)
            x = (
                x
                + rearrange(heads.softmax(-1), "b h n d -> b n (h d)")
                + repeat(reduce(x, "b n d -> b d", "mean"), "b d -> b n d", n=4)
            )
            answer: torch.Tensor = self.pool(x)
            return answer

    model, images = Mixer().train(), torch.randn(2, 3, 8, 8)
    return trained(model, lambda: model(images).square().mean())


def gaussian_process() -> Any:
    """An exact Gaussian process of gpytorch: Cholesky factors, lazily evaluated kernels."""
    import gpytorch

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc, unused-ignore]
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

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


def graph_batches() -> Any:
    """A PyG loader with batches of graphs, pooling, and edges with features."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINEConv, global_mean_pool

    class Molecules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GINEConv(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)), edge_dim=3)
            self.second = GINEConv(nn.Linear(8, 8), edge_dim=3, train_eps=True)
            self.head = nn.Linear(8, 1)

        def forward(self, data: Any) -> torch.Tensor:
            x = self.first(data.x, data.edge_index, data.edge_attr)
            x = self.second(x, data.edge_index, data.edge_attr)
            answer: torch.Tensor = self.head(global_mean_pool(x, data.batch))
            return answer

    graphs = [
        Data(
            x=torch.randn(n, 4),
            edge_index=torch.randint(n, (2, 2 * n)),
            edge_attr=torch.randn(2 * n, 3),
            y=torch.randn(1, 1),
        )
        for n in (3, 5, 4, 6)
    ]
    model = Molecules().train()
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
    losses = []
    for batch in DataLoader(graphs, batch_size=2, shuffle=True):
        loss = (model(batch) - batch.y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(model)


def graph_convolution() -> Any:
    """Graph convolutions of PyG on a random graph."""
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = GCNConv(5, 8), GATConv(8, 4, heads=2), SAGEConv(8, 3)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            x = functional.dropout(self.first(x, edges).relu(), 0.2, self.training)
            answer: torch.Tensor = self.third(self.second(x, edges).relu(), edges)
            return answer

    x, edges, labels = torch.randn(10, 5), torch.randint(10, (2, 30)), torch.randint(3, (10,))
    model = Nodes().train()
    return trained(model, lambda: functional.cross_entropy(model(x, edges), labels))


def graph_kinds() -> Any:
    """A heterogeneous graph in PyG: one convolution for each edge type."""
    from torch_geometric.data import HeteroData
    from torch_geometric.nn import HeteroConv, SAGEConv

    data = HeteroData()
    data["reader"].x, data["book"].x = torch.randn(5, 4), torch.randn(6, 3)
    data["reader", "reads", "book"].edge_index = torch.stack([torch.randint(5, (12,)), torch.randint(6, (12,))])
    data["book", "read_by", "reader"].edge_index = data["reader", "reads", "book"].edge_index.flip(0)
    model = HeteroConv(
        {
            ("reader", "reads", "book"): SAGEConv((4, 3), 7),
            ("book", "read_by", "reader"): SAGEConv((3, 4), 7),
        }
    ).train()

    def loss() -> torch.Tensor:
        made = model(data.x_dict, data.edge_index_dict)
        answer: torch.Tensor = made["book"].square().mean() + made["reader"].abs().mean()
        return answer

    return trained(model, loss)


def neural_ode() -> Any:
    """A neural differential equation by torchdiffeq, with adjoint gradients: backward runs the solver again."""
    from torchdiffeq import odeint, odeint_adjoint

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))

        def forward(self, _: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.net(y**3)
            return answer

    times, start, model = torch.linspace(0, 1, 4), torch.randn(3, 2), Slope()
    return [
        trained(model, lambda: solve(model, start, times, method=method)[-1].square().mean(), steps=1)
        for solve, method in ((odeint, "rk4"), (odeint_adjoint, "euler"), (odeint, "dopri5"))
    ]
