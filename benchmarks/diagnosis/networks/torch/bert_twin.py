"""The same masked language model: one matrix for q, k and v, explicit attention, the loss of only the masked tokens."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Attend(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        parts = [nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)]
        self.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
        self.bias = nn.Parameter(torch.cat([part.bias.detach() for part in parts]))
        self.project = nn.Linear(d, d)
        self.n = heads

    def forward(self, stream, allowed):
        b, t, d = stream.shape
        fused = F.linear(stream, self.weight, self.bias)  # <query>
        q, k, v = fused.view(b, t, 3, self.n, d // self.n).permute(2, 0, 3, 1, 4)  # <heads>
        raw = torch.matmul(q, k.mT) / math.sqrt(d // self.n)  # <sdpa>
        raw = torch.where(allowed[:, None, None], raw, torch.tensor(-1e9))  # <padding>
        shares = torch.softmax(raw, -1)  # <softmax>
        mixed = torch.matmul(shares, v)  # <mix>
        mixed = mixed.permute(0, 2, 1, 3).flatten(2)
        return self.project(mixed)  # <attended>


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attend = Attend(d, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(d, 1e-12) for _ in range(2))  # <output_norm-init>
        self.widen = nn.Linear(d, 2 * d)
        self.narrow = nn.Linear(2 * d, d)

    def drop(self, x):
        return F.dropout(x, p=0.1, training=self.training)  # <drop>

    def forward(self, stream, allowed):
        stream = self.norms[0](self.drop(self.attend(stream, allowed)) + stream)  # <attention-norm>
        wide = F.gelu(self.widen(stream))  # <gelu>
        narrow = self.narrow(wide)  # <dense>
        stream = self.norms[1](self.drop(narrow) + stream)  # <output-norm>
        return stream


class MaskedModel(nn.Module):
    def __init__(self, symbols, d, heads, longest):
        super().__init__()
        self.symbol = nn.Embedding(symbols, d, padding_idx=0)
        self.place = nn.Parameter(nn.Embedding(longest, d).weight.detach())
        self.side = nn.Embedding(2, d)
        self.enter = nn.LayerNorm(d, 1e-12)
        self.stack = nn.ModuleList(Layer(d, heads) for _ in range(2))
        self.head = nn.Linear(d, d)
        self.offset = nn.Parameter(torch.zeros(symbols))

    def forward(self, symbols, sides):
        stream = self.symbol(symbols) + self.side(sides) + self.place  # <words>
        stream = F.dropout(self.enter(stream), p=0.1, training=self.training)  # <embedded>
        for layer in self.stack:
            stream = layer(stream, symbols.ne(0))  # <layer>
        stream = self.head(stream).tanh()  # <transform>
        return F.linear(stream, self.symbol.weight, self.offset)  # <decode>


def examples(count):
    rng = np.random.default_rng(21)
    for _ in range(count):
        symbols = rng.integers(2, 30, (4, 9))
        places = np.arange(9)
        real = places[None] < np.array([9, 7, 9, 5])[:, None]  # <lengths>
        symbols[~real] = 0
        hidden = real & (rng.random((4, 9)) < 0.3)
        wanted = torch.from_numpy(symbols[hidden])
        symbols[hidden] = 1
        sides = torch.from_numpy((places >= 4).astype(np.int64)).expand(4, 9)  # <segments>
        yield torch.from_numpy(symbols), sides, torch.from_numpy(hidden), wanted


torch.manual_seed(21)
net = MaskedModel(30, 16, 4, 9)
adamw = torch.optim.AdamW(net.parameters(), lr=2e-3, eps=1e-6, weight_decay=0.05)  # <adamw>
for number, (symbols, sides, hidden, wanted) in enumerate(examples(2)):
    adamw.param_groups[0]["lr"] = 2e-3 * (1 - 0.9 * number / 4)  # <schedule>
    scores = net(symbols, sides)  # <call>
    scores = scores[hidden]  # <chosen>
    loss = F.cross_entropy(scores, wanted)  # <loss>
    adamw.zero_grad()  # <zero>
    loss.backward()  # <backward>
    length = nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # <clip>
    adamw.step()  # <step>
    print(number, loss.item(), length.item())
