"""The same vision transformer: patches by unfold and matmul, functional attention, blocks in a loop."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.first_norm = nn.LayerNorm(dim)
        source = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.qkv_weight, self.qkv_bias = source.in_proj_weight, source.in_proj_bias
        self.merge = source.out_proj
        self.second_norm = nn.LayerNorm(dim)  # <ln2-init>
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gain = nn.Parameter(torch.ones(dim) / 2)
        self.heads = heads

    def attend(self, t):
        projected = F.linear(t, self.qkv_weight, self.qkv_bias)  # <qkv>
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in projected.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)  # <attention>
        return self.merge(mixed.transpose(1, 2).flatten(2))  # <merge>

    def forward(self, t):
        t = torch.addcmul(t, self.gain, self.attend(self.first_norm(t)))  # <residual1>
        inner = self.up(self.second_norm(t))  # <ln2>
        inner = F.gelu(inner)  # <gelu>
        return torch.addcmul(t, self.gain, self.down(inner))  # <residual2>


class PatchNet(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.to_patches = nn.Conv2d(1, dim, 4, stride=4)
        self.summary = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.where = nn.Parameter(0.02 * torch.randn(1, 10, dim))
        self.mixers = nn.ModuleList(Mixer(dim, 4) for _ in range(2))
        self.final = nn.LayerNorm(dim)
        self.answer = nn.Linear(dim, 5)

    def forward(self, picture):
        b = picture.shape[0]
        pieces = F.unfold(picture, 4, stride=4).mT  # <unfold>
        tokens = pieces @ self.to_patches.weight.flatten(1).T + self.to_patches.bias  # <patches>
        tokens = torch.cat((self.summary.repeat(b, 1, 1), tokens), dim=1)  # <token>
        tokens = self.where + tokens  # <places>
        for mixer in self.mixers:
            tokens = mixer(tokens)  # <blocks>
        summary = self.final(tokens)[:, 0]  # <norm>
        return self.answer(summary)  # <head>


def load():
    source = np.random.default_rng(17)
    pictures = torch.as_tensor(source.random((12, 1, 12, 12), dtype=np.float32))  # <images>
    digits = torch.as_tensor(source.integers(0, 5, 12))  # <labels>
    return (pictures - pictures.mean()) / pictures.std(), digits  # <normalise>


torch.manual_seed(17)
net = PatchNet()
rule = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.01, amsgrad=True)  # <adam>
pictures, digits = load()
for turn in range(3):
    chosen = torch.arange(turn, 12, 3)
    scores = net(pictures[chosen])  # <call>
    loss = F.cross_entropy(scores, digits[chosen])  # <loss>
    loss = loss + 1e-2 * torch.mean(torch.logsumexp(scores, -1) ** 2)  # <penalty>
    rule.zero_grad()  # <zero>
    loss.backward()  # <backward>
    net.to_patches.weight.grad /= 2  # <grad-scale>
    rule.step()  # <step>
    print(turn, loss.item())
