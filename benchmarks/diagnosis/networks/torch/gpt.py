"""A causal language model with three layers: hand-written fused attention, tied weights, AdamW with two groups, clipping, warm-up."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, TOKENS, VOCABULARY = 12, 3, 10, 23

torch.manual_seed(1)
corpus = np.random.default_rng(1).integers(0, VOCABULARY, 400)  # <corpus>


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril().bool(), persistent=False)  # <mask-init>

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).split(WIDTH, dim=2)  # <qkv>
        q = q.view(batch, tokens, HEADS, -1).transpose(1, 2)  # <q>
        k = k.view(batch, tokens, HEADS, -1).transpose(1, 2)  # <k>
        v = v.view(batch, tokens, HEADS, -1).transpose(1, 2)  # <v>
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)  # <scores>
        scores = scores.masked_fill(~self.mask[:tokens, :tokens], float("-inf"))  # <mask>
        weights = F.softmax(scores, dim=-1)  # <softmax>
        y = (weights @ v).transpose(1, 2).reshape(batch, tokens, WIDTH)  # <values>
        return self.out(y)  # <attention-out>


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)  # <norm1-init>
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))  # <residual1>
        h = self.norm2(x)  # <norm2>
        h = F.gelu(self.up(h), approximate="tanh")  # <gelu>
        return x + self.down(h)  # <residual2>


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) * math.sqrt(WIDTH)  # <tokens>
        x = x + self.positions[: ids.shape[1]]  # <positions>
        for index, layer in enumerate(self.layers):
            x = layer(x)  # <layer>
        return self.head(self.norm(x))  # <head>


model = GPT()
decayed = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() < 2]  # <plain>
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]  # <groups>
optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))  # <adamw>
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))  # <schedule>

for step in range(3):
    starts = [7 + 40 * step, 25 + 40 * step]
    window = torch.from_numpy(np.stack([corpus[start : start + TOKENS + 1] for start in starts]))  # <window>
    ids, targets = window[:, :-1], window[:, 1:]  # <shift>
    logits = model(ids)  # <call>
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))  # <loss>
    optimizer.zero_grad()  # <zero>
    loss.backward()  # <backward>
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # <clip>
    optimizer.step()  # <step>
    schedule.step()  # <schedule-step>
    print(f"step {step} loss {loss.item()!r}")
