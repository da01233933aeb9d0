"""The same GAN with Sequentials, a function for each half of a step, and another form of the update."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Moments(torch.optim.Optimizer):
    """The update in the order of the paper: rates of both moments, then one division."""

    def __init__(self, params, lr, betas=(0.5, 0.9), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        b1, b2 = group["betas"]
        for weight in group["params"]:
            memory = self.state.setdefault(weight, {})
            memory.setdefault("mean", torch.zeros_like(weight))
            memory.setdefault("square", torch.zeros_like(weight))
            memory["steps"] = memory.get("steps", 0) + 1  # <t>
            g = weight.grad
            mean = memory["mean"].lerp_(g, 1 - b1)  # <first>
            square = memory["square"].mul_(b2).add_(g.square(), alpha=1 - b2)  # <second>
            mean = mean.div(1 - b1 ** memory["steps"])  # <m-hat>
            root = torch.sqrt(square.div(1 - b2 ** memory["steps"]))  # <v-hat>
            change = mean / (root + group["eps"])  # <denominator>
            weight.sub_(change * group["lr"])  # <update>


class Skip(nn.Linear):
    def forward(self, x):
        return F.elu(super().forward(x), 0.7) + x  # <d-fc2>


def networks():
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2), nn.Tanh())
    judge = nn.Sequential(nn.Linear(2, 16), nn.ELU(0.7), Skip(16, 16), nn.Linear(16, 1))  # <judge-init>
    return maker, judge


def make(maker, seeds):
    return 1.5 * maker(seeds)  # <g-out>


def steepness(judge, points):
    points.requires_grad_(True)
    score = judge(points)  # <slope-score>
    slope = torch.autograd.grad(score, points, torch.ones_like(score), create_graph=True)[0]  # <slopes>
    length = slope.pow(2).sum(1).sqrt()  # <length>
    return torch.mean((length - 1).square())  # <penalty>


def judge_loss(judge, true, false, share):
    middle = torch.lerp(false, true, share)  # <between>
    steep = steepness(judge, middle)  # <steep>
    return judge(false).mean() - judge(true).mean() + steep * 10  # <d-loss>


phi = np.random.default_rng(41).uniform(0, 2 * np.pi, (3, 10))
circle = torch.from_numpy(np.stack([np.cos(phi), np.sin(phi)], axis=-1).astype("float32"))  # <ring>
torch.manual_seed(41)
maker, judge = networks()
judge_rule = torch.optim.RMSprop(judge.parameters(), lr=1e-3, alpha=0.9, centered=True)  # <rmsprop>
maker_rule = Moments(maker.parameters(), lr=2e-3)  # <own-adam>
for turn in range(2):
    seeds = torch.randn(10, 4)  # <z>
    share = torch.rand(10, 1)  # <mix>
    with torch.no_grad():
        false = make(maker, seeds)  # <fake>
    loss = judge_loss(judge, circle[turn], false, share)  # <call>
    judge_rule.zero_grad()  # <d-zero>
    loss.backward()  # <d-backward>
    judge_rule.step()  # <d-step>
    fooled = judge(make(maker, seeds)).mean().neg()  # <g-loss>
    maker_rule.zero_grad()  # <g-zero>
    fooled.backward()  # <g-backward>
    maker_rule.step()  # <g-step>
    print(turn, loss.item(), fooled.item())
