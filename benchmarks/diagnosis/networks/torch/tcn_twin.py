"""The same WaveNet: the library's weight norm function, taps as two matrix products, skips stacked and summed at the end."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Taps(nn.Module):
    """A causal convolution with two taps, as two matrix products."""

    def __init__(self, c, reach):
        super().__init__()
        template = nn.Conv1d(c, 2 * c, 2)
        weight, bias = template.weight.detach().clone(), template.bias.detach().clone()
        self.v, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.g = nn.Parameter(weight.pow(2).sum((1, 2)).sqrt())
        self.reach = reach

    def forward(self, x):
        kernel = torch._weight_norm(self.v, self.g[:, None, None], 0)  # <weight>
        before = F.pad(x, (0, 0, self.reach, 0))[:, : x.shape[1]]  # <pad>
        past = before @ kernel[:, :, 0].T  # <past>
        return past + F.linear(x, kernel[..., 1], self.bias)  # <conv>


class Unit(nn.Module):
    def __init__(self, c, reach):
        super().__init__()
        self.taps = Taps(c, reach)
        out, keep = nn.Conv1d(c, c, 1), nn.Conv1d(c, c, 1)
        self.w_out, self.b_out = nn.Parameter(out.weight.detach()[..., 0]), out.bias
        self.w_keep, self.b_keep = nn.Parameter(keep.weight.detach()[..., 0]), keep.bias

    def forward(self, x):
        both = self.taps(x)  # <halves>
        c = both.shape[-1] // 2
        passed = both[..., c:].sigmoid() * both[..., :c].tanh()  # <gated>
        out = F.linear(passed, self.w_out, self.b_out)  # <skip>
        return x + F.linear(passed, self.w_keep, self.b_keep), out  # <stay>


class Net(nn.Module):
    def __init__(self, classes=16, c=6):
        super().__init__()
        self.symbols = nn.Embedding(classes, c)
        self.units = nn.ModuleList([Unit(c, 1), Unit(c, 2), Unit(c, 4)])  # <gates-init>
        self.first, self.second = nn.Conv1d(c, c, 1), nn.Conv1d(c, classes, 1)

    def forward(self, symbols):
        x = self.symbols(symbols)  # <embed>
        outs = []
        for unit in self.units:
            x, out = unit(x)  # <gate>
            outs.append(out)
        mixed = torch.stack(outs).sum(0) / 3**0.5  # <average>
        mixed = self.first(mixed.relu().mT).relu()  # <out1>
        return self.second(mixed)  # <out2>


def encoded(wave, classes=16, mu=255.0):
    wave = torch.from_numpy(wave.astype(np.float32))
    pressed = torch.copysign(torch.log1p(mu * wave.abs()) / float(np.log1p(mu)), wave)  # <squeezed>
    return torch.floor((pressed + 1) * 0.5 * (classes - 1) + 0.5).to(torch.int64)  # <codes>


torch.manual_seed(43)
net = Net()
seconds = np.arange(120) / 20
symbols = encoded(0.7 * np.sin(2 * np.pi * seconds) + 0.2 * np.sin(5 * seconds))  # <signal>
lengths = [unit.taps.g for unit in net.units]
rest = [p for name, p in net.named_parameters() if not name.endswith(".g")]  # <others>
first = torch.optim.SGD(lengths, lr=0.1, momentum=0.5, dampening=0.1)  # <sgd>
second = torch.optim.RMSprop(rest, lr=2e-3, weight_decay=1e-3)  # <rmsprop>
for turn in range(2):
    starts = torch.tensor([40 * turn, 40 * turn + 11])
    lines = symbols[starts[:, None] + torch.arange(25)]  # <rows>
    scores = net(lines[:, :24])[:, :, 4:]  # <call>
    loss = F.cross_entropy(scores, lines[:, 5:])  # <loss>
    net.zero_grad()  # <zero>
    loss.backward()  # <backward>
    first.step()  # <sgd-step>
    second.step()  # <step>
    print(turn, f"{loss.item():.9f}")
