"""The same reverser with einsum attention, a PyTorch norm, one class for encoder and decoder, and a gather for the bias."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(13)


def lengthwise(size):
    place = torch.arange(size)  # <distance>
    return place.unsqueeze(0) - place.unsqueeze(1)


def both_sides(size):
    ahead = lengthwise(size)
    return torch.where(ahead > 0, 4, 0) + torch.clamp(torch.abs(ahead), max=3)  # <bucket>


def behind(size):
    return torch.clamp(lengthwise(size).neg(), min=0, max=7)  # <causal-bucket>


class Heads(nn.Module):
    def __init__(self, d=12, h=2):
        super().__init__()
        made = [nn.Linear(d, d, bias=False) for _ in range(4)]
        self.to_q, self.to_k, self.to_v, self.back = made
        self.h = h

    def forward(self, asking, asked, bias=0.0):
        q, k, v = self.to_q(asking), self.to_k(asked), self.to_v(asked)  # <q>
        q, k, v = (t.reshape(*t.shape[:2], self.h, -1) for t in (q, k, v))
        raw = torch.einsum("bihd,bjhd->bhij", q, k)  # <scores>
        shares = F.softmax(raw + bias, dim=3)  # <softmax>
        mixed = torch.einsum("bhij,bjhd->bihd", shares, v)  # <mixed>
        return F.linear(mixed.flatten(2), self.back.weight)  # <o>


class Gated(nn.Module):
    def __init__(self, d=12, inner=24):
        super().__init__()
        self.a = nn.Linear(d, inner, bias=False)
        self.b = nn.Linear(d, inner, bias=False)
        self.c = nn.Linear(inner, d, bias=False)

    def forward(self, x):
        b = self.b(x)
        a = self.a(x)
        return self.c(b * F.gelu(a))  # <gate>


class Reverser(nn.Module):
    def __init__(self, symbols=17, d=12):
        super().__init__()
        self.embedding = nn.Embedding(symbols, d)
        self.left = nn.Embedding(8, 2)
        self.right = nn.Embedding(8, 2)
        self.enc_attention, self.enc_mlp = Heads(), Gated()
        self.dec_attention, self.dec_cross, self.dec_mlp = Heads(), Heads(), Gated()
        self.scales = nn.ParameterList(torch.ones(d) for _ in range(7))

    def norm(self, number, x):
        return F.rms_norm(x, x.shape[-1:], self.scales[number], 1e-6)  # <variance>

    def encode(self, symbols):
        bias = self.left.weight[both_sides(symbols.shape[1])].movedim(-1, 0)  # <encoder-bias>
        x = self.embedding(symbols)  # <source>
        y = self.norm(0, x)
        x = self.enc_attention(y, y, bias) + x  # <encoder-attend>
        x = self.enc_mlp(self.norm(1, x)) + x  # <encoder-feed>
        return self.norm(2, x)  # <encoder-norm>

    def forward(self, symbols, shifted):
        memory = self.encode(symbols)
        t = shifted.shape[1]
        bias = self.right.weight[behind(t)].movedim(-1, 0)  # <table>
        later = torch.ones(t, t, dtype=torch.bool).triu(diagonal=1)  # <future>
        bias = bias.masked_fill(later, float("-inf"))  # <decoder-bias>
        x = self.embedding(shifted)  # <target>
        y = self.norm(3, x)
        x = self.dec_attention(y, y, bias) + x  # <decoder-attend>
        x = self.dec_cross(self.norm(4, x), memory) + x  # <cross>
        x = self.dec_mlp(self.norm(5, x)) + x  # <decoder-feed>
        x = self.norm(6, x) * 12**-0.5  # <final>
        return x @ self.embedding.weight.t()  # <logits>


net = Reverser()
rule = torch.optim.Adagrad(net.parameters(), 0.05, initial_accumulator_value=0.1, eps=1e-8)  # <adagrad>
everything = torch.randint(2, 17, (8, 7), generator=torch.Generator().manual_seed(99))  # <sequences>
for number, symbols in enumerate(everything.split(4)):
    wanted = symbols[:, torch.arange(6, -1, -1)]  # <answer>
    shifted = F.pad(wanted[:, :6], (1, 0))  # <given>
    scores = net(symbols, shifted)  # <call>
    loss = F.nll_loss(scores.log_softmax(-1).transpose(1, 2), wanted)  # <loss>
    net.zero_grad()  # <zero>
    loss.backward()  # <backward>
    rule.step()  # <step>
    print(number, loss.item())
