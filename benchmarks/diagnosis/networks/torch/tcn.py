"""Dilated causal convolutions with gates and skips (WaveNet), hand-written weight norm, mu-law classes, RMSprop, and SGD for scales."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(43)
CLASSES, CHANNELS = 16, 6

time = np.arange(120) / 20
signal = 0.7 * np.sin(2 * np.pi * time) + 0.2 * np.sin(5 * time)  # <signal>


def mu_law(values):
    values = torch.as_tensor(values, dtype=torch.float32)
    squeezed = values.sign() * torch.log1p(255 * values.abs()) / math.log1p(255)  # <squeezed>
    return ((squeezed + 1) / 2 * (CLASSES - 1) + 0.5).long()  # <codes>


class NormedConv(nn.Module):
    def __init__(self, inputs, outputs, dilation):
        super().__init__()
        conv = nn.Conv1d(inputs, outputs, 2)
        self.direction = nn.Parameter(conv.weight.detach().clone())
        self.scale = nn.Parameter(conv.weight.detach().flatten(1).norm(dim=1))
        self.bias = nn.Parameter(conv.bias.detach().clone())
        self.dilation = dilation

    def forward(self, x):
        length = self.direction.flatten(1).norm(dim=1)  # <length>
        weight = self.direction * (self.scale / length)[:, None, None]  # <weight>
        x = F.pad(x, (self.dilation, 0))  # <pad>
        return F.conv1d(x, weight, self.bias, dilation=self.dilation)  # <conv>


class Gate(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.conv = NormedConv(CHANNELS, 2 * CHANNELS, dilation)
        self.skip = nn.Conv1d(CHANNELS, CHANNELS, 1)
        self.stay = nn.Conv1d(CHANNELS, CHANNELS, 1)

    def forward(self, x):
        value, gate = self.conv(x).chunk(2, 1)  # <halves>
        y = torch.tanh(value) * torch.sigmoid(gate)  # <gated>
        return x + self.stay(y), self.skip(y)  # <stay>


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, CHANNELS)
        self.gates = nn.ModuleList(Gate(2**depth) for depth in range(3))  # <gates-init>
        self.out1 = nn.Conv1d(CHANNELS, CHANNELS, 1)
        self.out2 = nn.Conv1d(CHANNELS, CLASSES, 1)

    def forward(self, codes):
        x = self.embed(codes).transpose(1, 2)  # <embed>
        total = 0
        for depth, gate in enumerate(self.gates):
            x, skip = gate(x)  # <gate>
            total = total + skip  # <total>
        total = F.relu(total * math.sqrt(1 / 3))  # <average>
        total = F.relu(self.out1(total))  # <out1>
        return self.out2(total)  # <out2>


net = WaveNet()
codes = mu_law(signal)  # <mu-law>
scales = [gate.conv.scale for gate in net.gates]
scale_ids = {id(p) for p in scales}
others = [p for p in net.parameters() if id(p) not in scale_ids]  # <others>
rmsprop = torch.optim.RMSprop(others, lr=2e-3, weight_decay=1e-3)  # <rmsprop>
sgd = torch.optim.SGD(scales, lr=0.1, momentum=0.5, dampening=0.1)  # <sgd>

for step in range(2):
    rows = torch.stack([codes[at : at + 25] for at in (40 * step, 40 * step + 11)])  # <rows>
    logits = net(rows[:, :-1])  # <call>
    loss = F.cross_entropy(logits[..., 4:], rows[:, 5:])  # <loss>
    rmsprop.zero_grad()
    sgd.zero_grad()  # <zero>
    loss.backward()  # <backward>
    rmsprop.step()  # <step>
    sgd.step()  # <sgd-step>
    print(step, f"{loss.item():.9f}")
