"""A mixture of four experts, two for each token: top-k routing, index_add, a balance loss, Adam."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(29)
WIDTH, EXPERTS, TOP = 8, 4, 2


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x):
        hidden = F.silu(self.w1(x))  # <silu>
        return self.w2(hidden * self.w3(x))  # <w2>


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.register_buffer("load", torch.zeros(EXPERTS))

    def forward(self, x):
        flat = x.view(-1, WIDTH)
        logits = self.router(flat)  # <router>
        shares = logits.softmax(-1)  # <shares>
        weights, chosen = torch.topk(shares, TOP, dim=-1)  # <topk>
        weights = weights / weights.sum(-1, keepdim=True)  # <renormalise>
        result = torch.zeros_like(flat)
        counts = torch.zeros(EXPERTS)
        for index, expert in enumerate(self.experts):
            token, place = torch.where(chosen == index)  # <where>
            counts[index] = token.numel()
            part = expert(flat[token])  # <expert>
            part = part * weights[token, place, None]  # <weighted>
            result.index_add_(0, token, part)  # <index-add>
        self.load.mul_(0.9).add_(counts, alpha=0.1)  # <load>
        fraction = counts / counts.sum()  # <fraction>
        balance = EXPERTS * (fraction * shares.mean(0)).sum()  # <balance>
        return result.view_as(x), balance


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(5, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.moes = nn.ModuleList([MoE(), MoE()])
        self.leave = nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = self.enter(x).tanh()  # <enter>
        extra = 0.0
        for norm, moe in zip(self.norms, self.moes):
            y, balance = moe(norm(x))  # <moe>
            x = x + y  # <residual>
            extra = extra + balance  # <extra>
        return self.leave(x).mean(1), extra  # <leave>


numbers = np.random.default_rng(29)
series = numbers.standard_normal((12, 6, 5)).cumsum(1).astype(np.float32)  # <series>
goals = np.stack([series[:, -1].mean(1), series[:, 0].max(1)], 1)  # <goals>

model = Model()
adam = torch.optim.Adam(model.parameters(), lr=5e-3)  # <adam>
average = [p.detach().clone() for p in model.parameters()]

for step in range(3):
    part = slice(4 * step, 4 * step + 4)
    x, y = torch.from_numpy(series[part]), torch.from_numpy(goals[part])  # <batch>
    out, extra = model(x)  # <call>
    loss = F.smooth_l1_loss(out, y, beta=0.5) + 0.01 * extra  # <loss>
    adam.zero_grad()  # <zero>
    loss.backward()  # <backward>
    model.moes[0].router.weight.grad.clamp_(-0.001, 0.001)  # <clip>
    adam.step()  # <step>
    with torch.no_grad():
        torch._foreach_lerp_(average, list(model.parameters()), 0.1)  # <average>
    print(step, loss.item())
