"""An encoder and decoder that reverse sequences: RMS norm, relative position bias, cross attention, Adagrad."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(13)
D, H, V, BUCKETS = 12, 2, 17, 8


class RMSNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)  # <variance>
        x = x * torch.rsqrt(variance + self.eps)  # <rsqrt>
        return self.weight * x  # <rms-weight>


class RelativeBias(nn.Module):
    def __init__(self, bidirectional):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, H)
        self.bidirectional = bidirectional

    def forward(self, queries, keys):
        distance = torch.arange(keys)[None] - torch.arange(queries)[:, None]  # <distance>
        if self.bidirectional:
            bucket = (distance > 0).long() * (BUCKETS // 2)  # <side>
            bucket = bucket + distance.abs().clamp(max=BUCKETS // 2 - 1)  # <bucket>
        else:
            bucket = (-distance).clamp(0, BUCKETS - 1)  # <causal-bucket>
        return self.table(bucket).permute(2, 0, 1)  # <table>


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x, memory, bias):
        def heads(t):
            return t.unflatten(-1, (H, D // H)).transpose(1, 2)

        q = heads(self.q(x))  # <q>
        k, v = heads(self.k(memory)), heads(self.v(memory))  # <kv>
        scores = q @ k.transpose(2, 3)  # <scores>
        if bias is not None:
            scores += bias  # <bias>
        weights = scores.softmax(-1)  # <softmax>
        return self.o((weights @ v).transpose(1, 2).flatten(2))  # <o>


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi0, self.wi1, self.wo = nn.Linear(D, 24, False), nn.Linear(D, 24, False), nn.Linear(24, D, False)

    def forward(self, x):
        gate = F.gelu(self.wi0(x))  # <gate>
        gate = gate * self.wi1(x)  # <gated>
        return self.wo(gate)  # <wo>


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(V, D)
        self.encoder_bias, self.decoder_bias = RelativeBias(True), RelativeBias(False)
        self.encoder = nn.ModuleDict({"attend": Attention(), "feed": FeedForward()})
        self.decoder = nn.ModuleDict({"attend": Attention(), "cross": Attention(), "feed": FeedForward()})
        self.norms = nn.ModuleList(RMSNorm() for _ in range(7))

    def forward(self, source, target):
        e = self.shared(source)  # <source>
        n = self.norms
        bias = self.encoder_bias(source.shape[1], source.shape[1])  # <encoder-bias>
        normed = n[0](e)  # <norm0>
        e = e + self.encoder["attend"](normed, normed, bias)  # <encoder-attend>
        e = e + self.encoder["feed"](n[1](e))  # <encoder-feed>
        e = n[2](e)  # <encoder-norm>
        d = self.shared(target)  # <target>
        length = target.shape[1]
        future = torch.full((length, length), -torch.inf).triu(1)  # <future>
        bias = self.decoder_bias(length, length) + future  # <decoder-bias>
        normed = n[3](d)  # <norm3>
        d = d + self.decoder["attend"](normed, normed, bias)  # <decoder-attend>
        d = d + self.decoder["cross"](n[4](d), e, None)  # <cross>
        d = d + self.decoder["feed"](n[5](d))  # <decoder-feed>
        d = n[6](d) / math.sqrt(D)  # <final>
        return F.linear(d, self.shared.weight)  # <logits>


t5 = T5()
optimizer = torch.optim.Adagrad(t5.parameters(), lr=0.05, initial_accumulator_value=0.1, eps=1e-8)  # <adagrad>
sequences = torch.randint(2, V, (8, 7), generator=torch.Generator().manual_seed(99))  # <sequences>

for step in range(2):
    source = sequences[4 * step : 4 * step + 4]  # <rows>
    answer = source.flip(1)  # <answer>
    given = torch.cat([torch.zeros(4, 1, dtype=torch.long), answer[:, :-1]], 1)  # <given>
    optimizer.zero_grad()  # <zero>
    out = t5(source, given)  # <call>
    loss = F.cross_entropy(out.view(-1, V), answer.reshape(-1))  # <loss>
    loss.backward()  # <backward>
    optimizer.step()  # <step>
    print(step, loss.item())
