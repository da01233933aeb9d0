"""A causal transformer of two blocks in PyTorch: layer norms, GELU, clipped gradients, SGD with decay."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, TOKENS, VOCABULARY = 16, 4, 6, 23

numbers = np.random.default_rng(1)


def matrix(rows, columns):
    return numbers.normal(0, 0.3, (rows, columns)).astype(np.float32)


def linear(rows, columns):
    layer = nn.Linear(rows, columns, bias=False)
    layer.weight.data = torch.from_numpy(matrix(rows, columns).T.copy())
    return layer


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = linear(WIDTH, 3 * WIDTH)
        self.out = linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, HEADS, WIDTH // HEADS)  # <qkv>
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # <split>
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)  # <scores>
        mask = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1)  # <mask>
        scores = scores.masked_fill(mask, float("-inf"))  # <masked>
        weights = F.softmax(scores, dim=-1)  # <softmax>
        y = (weights @ v).transpose(1, 2).reshape(batch, tokens, WIDTH)  # <values>
        return self.out(y)  # <attention-out>


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=1e-5) for _ in range(2))  # <norms>
        self.attention = Attention()
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))  # <residual1>
        h = self.up(self.norm2(x))  # <up>
        h = F.gelu(h, approximate="tanh")  # <gelu>
        return x + self.down(h)  # <residual2>


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.from_numpy(matrix(VOCABULARY, WIDTH)))
        self.positions = nn.Parameter(torch.from_numpy(matrix(TOKENS, WIDTH)))
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH, eps=1e-5)  # <last-norm>
        self.head = linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        x = F.embedding(ids, self.tokens) + self.positions  # <embed>
        for block in self.blocks:
            x = block(x)  # <block>
        return self.head(self.norm(x))  # <head>


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)  # <optimizer>
for step in range(1):
    window = numbers.integers(0, VOCABULARY, (2, TOKENS + 1))  # <window>
    ids, targets = torch.from_numpy(window[:, :-1].copy()), torch.from_numpy(window[:, 1:].copy())  # <shift>
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="sum") / 12  # <loss>
    optimizer.zero_grad()
    loss.backward()  # <backward>
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <clip>
    optimizer.step()  # <update>
    print(f"step {step} loss {loss.item()!r}")
