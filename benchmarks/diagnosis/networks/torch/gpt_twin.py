"""The same language model: queries, keys and values by three Linears, einsum, an additive mask, the embedding used as head."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def parts_of(fused, count):
    made = []
    for weight, bias in zip(fused.weight.chunk(count), fused.bias.chunk(count), strict=True):
        part = nn.Linear(*reversed(weight.shape))
        part.weight, part.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        made.append(part)
    return made


class SelfAttention(nn.Module):
    def __init__(self, d, heads, longest):
        super().__init__()
        self.heads = heads
        fused, self.join = nn.Linear(d, 3 * d), nn.Linear(d, d)
        with torch.random.fork_rng():
            self.query, self.key, self.value = parts_of(fused, 3)
        self.register_buffer("bias", torch.full((longest, longest), float("-inf")).triu(1))  # <mask-init>

    def forward(self, h):
        b, t, d = h.shape
        shape = (b, t, self.heads, d // self.heads)
        query = self.query(h).reshape(shape)  # <q>
        key = self.key(h).reshape(shape)  # <k>
        value = self.value(h).reshape(shape)  # <v>
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key)  # <scores>
        logits = logits * (d // self.heads) ** -0.5  # <scale>
        attend = (logits + self.bias[:t, :t]).softmax(-1)  # <mask>
        mixed = torch.einsum("bhqk,bkhd->bqhd", attend, value)  # <values>
        return self.join(mixed.flatten(2))  # <attention-out>


class Feedforward(nn.Sequential):
    def __init__(self, d):
        super().__init__(nn.Linear(d, 4 * d), nn.GELU("tanh"), nn.Linear(4 * d, d))  # <gelu-init>


class Block(nn.Module):
    def __init__(self, d, heads, longest):
        super().__init__()
        self.before_attention = nn.LayerNorm(d)  # <norm1-init>
        self.attend = SelfAttention(d, heads, longest)
        self.before_mlp = nn.LayerNorm(d)
        self.mlp = Feedforward(d)

    def forward(self, stream):
        normed = self.before_attention(stream)  # <norm1>
        stream = self.attend(normed) + stream  # <residual1>
        normed = self.before_mlp(stream)  # <norm2>
        stream = self.mlp(normed) + stream  # <residual2>
        return stream


class LanguageModel(nn.Module):
    def __init__(self, symbols, d, heads, longest, depth):
        super().__init__()
        self.wte = nn.Embedding(symbols, d)
        self.wpe = nn.Embedding.from_pretrained(torch.randn(longest, d) * 0.1, freeze=False)
        self.blocks = nn.ModuleList([Block(d, heads, longest) for _ in range(depth)])
        self.last = nn.LayerNorm(d)
        nn.Linear(d, symbols, bias=False)

    def forward(self, ids):
        stream = self.wte(ids) * self.wte.embedding_dim**0.5  # <tokens>
        stream = stream + self.wpe(torch.arange(ids.size(-1)))  # <positions>
        for number, block in enumerate(self.blocks):
            stream = block(stream)  # <layer>
        stream = self.last(stream)  # <last-norm>
        return F.linear(stream, self.wte.weight)  # <head>


torch.manual_seed(1)
lm = LanguageModel(23, 12, 3, 10, 3)
numbers = np.random.default_rng(1).integers(0, 23, 400)  # <corpus>
matrices, vectors = [], []
for parameter in lm.parameters():
    (matrices if parameter.ndim >= 2 else vectors).append(parameter)
adamw = torch.optim.AdamW(
    [{"params": vectors, "weight_decay": 0.0}, {"params": matrices}], lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1
)  # <adamw>

for step in range(3):
    for group in adamw.param_groups:
        group["lr"] = 3e-3 * (step + 1) / 4  # <schedule>
    lines = [numbers[at + 40 * step : at + 40 * step + 11] for at in (7, 25)]  # <window>
    both = torch.tensor(np.array(lines))
    adamw.zero_grad()  # <zero>
    scores = lm(both[:, :10])  # <call>
    loss = F.cross_entropy(scores.transpose(1, 2), both[:, 1:])  # <loss>
    loss.backward()  # <backward>
    nn.utils.clip_grad_norm_([*matrices, *vectors], 0.5)  # <clip>
    adamw.step()  # <step>
    print(f"step {step} loss {loss.item()!r}")
