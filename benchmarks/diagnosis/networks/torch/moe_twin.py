"""The same experts as stacked weights: every expert sees every token, and scattered shares weight the outputs."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self, dim, count):
        super().__init__()
        made = []
        for _ in range(count):
            made.append([nn.Linear(a, b, bias=False).weight.detach() for a, b in ((dim, 16), (16, dim), (dim, 16))])
        gate, back, value = (torch.stack(weights) for weights in zip(*made))
        self.gate, self.back, self.value = nn.Parameter(gate), nn.Parameter(back), nn.Parameter(value)

    def forward(self, tokens):
        hidden = F.silu(torch.einsum("nd,ehd->enh", tokens, self.gate))  # <silu>
        hidden = hidden * torch.einsum("nd,ehd->enh", tokens, self.value)  # <value>
        return torch.einsum("enh,edh->end", hidden, self.back)  # <w2>


class Routed(nn.Module):
    def __init__(self, dim, count, top):
        super().__init__()
        self.choose = nn.Linear(dim, count, bias=False)
        self.experts = Experts(dim, count)
        self.top = top
        self.register_buffer("usage", torch.zeros(count))

    def forward(self, inputs):
        tokens = inputs.flatten(0, 1)
        probabilities = F.softmax(self.choose(tokens), dim=1)  # <router>
        best, which = probabilities.topk(self.top)  # <topk>
        best = best / best.sum(dim=1, keepdim=True)  # <renormalise>
        shares = torch.zeros_like(probabilities).scatter(1, which, best)  # <scatter>
        made = self.experts(tokens)  # <expert>
        made = torch.einsum("ne,end->nd", shares, made)  # <weighted>
        used = torch.bincount(which.flatten(), minlength=probabilities.shape[1]).float()  # <where>
        self.usage.lerp_(used, 0.1)  # <load>
        even = (used / used.sum() * probabilities.mean(0)).sum()  # <fraction>
        even = even * probabilities.shape[1]  # <balance>
        return made.reshape(inputs.shape), even


class Forecaster(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.first = nn.Linear(5, dim)
        self.scale = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.routed = nn.ModuleList([Routed(dim, 4, 2), Routed(dim, 4, 2)])
        self.last = nn.Linear(dim, 2)

    def forward(self, series):
        stream = torch.tanh(self.first(series))  # <enter>
        made, even_a = self.routed[0](self.scale[0](stream))  # <moe>
        stream = made + stream  # <residual>
        made, even_b = self.routed[1](self.scale[1](stream))  # <moe2>
        stream = made + stream  # <residual2>
        return self.last(stream).mean(dim=1), even_a + even_b  # <leave>


torch.manual_seed(29)
forecaster = Forecaster()
updates = torch.optim.Adam(forecaster.parameters(), lr=5e-3)  # <adam>
walks = np.random.default_rng(29).standard_normal((12, 6, 5)).cumsum(axis=1).astype("float32")  # <series>
wanted = np.stack([walks[:, -1].mean(axis=1), walks[:, 0].max(axis=1)], axis=1)  # <goals>
slow = {name: p.detach().clone() for name, p in forecaster.named_parameters()}

for turn, (walk, goal) in enumerate(zip(np.split(walks, 3), np.split(wanted, 3))):
    guess, even = forecaster(torch.from_numpy(walk))  # <call>
    loss = F.smooth_l1_loss(guess, torch.from_numpy(goal), beta=0.5)  # <loss>
    loss = loss + 0.01 * even  # <sum>
    updates.zero_grad()  # <zero>
    loss.backward()  # <backward>
    with torch.no_grad():
        forecaster.routed[0].choose.weight.grad.clamp_(min=-0.001, max=0.001)  # <clip>
    updates.step()  # <step>
    for name, p in forecaster.named_parameters():
        slow[name].lerp_(p.detach(), 0.1)  # <average>
    print(turn, loss.item())
