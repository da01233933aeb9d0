"""A denoiser for small images: noise schedule, time embedding, group norm, attention, AdamW, a moving average of weights."""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(31)
STEPS, CHANNELS = 20, 8

betas = torch.linspace(1e-3, 0.2, STEPS)  # <betas>
alphas = torch.cumprod(1 - betas, 0)  # <alphas>


def time_embedding(t, width):
    frequencies = torch.exp(-math.log(100.0) * torch.arange(width // 2) / (width // 2))  # <frequencies>
    angles = t[:, None].float() * frequencies[None]  # <angles>
    return torch.cat([angles.sin(), angles.cos()], dim=-1)  # <sincos>


class Block(nn.Module):
    def __init__(self, channels, attention):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(12, 2 * channels)
        self.norm2 = nn.GroupNorm(4, channels, eps=1e-6)  # <norm2-init>
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1) if attention else None
        self.drop = nn.Dropout2d(0.1)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))  # <conv1>
        scale, shift = self.time(emb)[:, :, None, None].chunk(2, 1)  # <time>
        h = self.norm2(h) * (1 + scale) + shift  # <modulate>
        h = self.conv2(self.drop(F.silu(h)))  # <conv2>
        x = (x + h) / math.sqrt(2.0)  # <residual>
        if self.qkv is not None:
            q, k, v = self.qkv(x).flatten(2).chunk(3, 1)  # <qkv>
            w = torch.einsum("bcq,bck->bqk", q, k) * CHANNELS**-0.5  # <scores>
            w = w.softmax(-1)  # <softmax>
            x = x + torch.einsum("bqk,bck->bcq", w, v).view_as(x)  # <attended>
        return x


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, CHANNELS, 3, padding=1)
        self.embed = nn.Sequential(nn.Linear(12, 12), nn.SiLU(), nn.Linear(12, 12))
        self.blocks = nn.ModuleList([Block(CHANNELS, False), Block(CHANNELS, True)])
        self.leave = nn.Conv2d(CHANNELS, 1, 3, padding=1)

    def forward(self, x, t):
        emb = time_embedding(t, 12)  # <time-embedding>
        emb = self.embed(emb)  # <embed>
        x = self.enter(x)  # <enter>
        for block in self.blocks:
            x = block(x, emb)  # <block>
        return self.leave(x)  # <leave>


net = Denoiser()
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)  # <adamw>
clean = torch.tensor(np.random.default_rng(31).uniform(-1, 1, (6, 1, 6, 6)), dtype=torch.float32)  # <clean>
times = torch.tensor([3, 11, 17, 0, 8, 14])  # <times>

for step in range(2):
    x0, t = clean[step::2], times[step::2]  # <rows>
    noise = torch.randn_like(x0)  # <noise>
    keep = alphas[t].view(-1, 1, 1, 1)  # <keep>
    noisy = keep.sqrt() * x0 + (1 - keep).sqrt() * noise  # <noisy>
    guess = net(noisy, t)  # <call>
    weight = (keep / (1 - keep)).clamp(max=5.0)  # <weight>
    loss = (weight * (guess - noise) ** 2).mean()  # <loss>
    optimizer.zero_grad()  # <zero>
    loss.backward()  # <backward>
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # <clip>
    optimizer.step()  # <step>
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), net.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)  # <average>
    print(step, loss.item())
