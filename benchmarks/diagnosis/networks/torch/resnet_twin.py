"""The same residual network from a table of widths: a function for convolution and norm, activations out of place."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def conv_norm(inputs, outputs, size, stride=1, eps=1e-5):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs, eps=eps)
    )


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3, eps=1e-3)  # <bn2-init>
        self.project = conv_norm(inputs, outputs, 1, stride) if (inputs, 1) != (outputs, stride) else None

    def forward(self, features):
        skip = features if self.project is None else self.project(features)  # <shortcut>
        inner = F.relu(self.first(features))  # <bn1>
        inner = self.second[0](inner)  # <conv2>
        inner = self.second[1](inner)  # <bn2>
        return F.relu(skip + inner)  # <relu>


class SmallResNet(nn.Module):
    def __init__(self, widths=((6, 1), (8, 2), (8, 1))):
        super().__init__()
        self.entry = conv_norm(3, 6, 3)
        blocks, before = [], 6
        for after, stride in widths:
            blocks.append(Residual(before, after, stride))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(before, 4)

    def forward(self, pixels):
        features = self.entry(pixels).relu()  # <stem>
        features = nn.MaxPool2d(2, ceil_mode=True)(features)  # <pool>
        features = self.blocks(features)  # <stage>
        pooled = F.adaptive_avg_pool2d(features, 1).flatten(1)  # <mean>
        return self.classify(pooled)  # <head>


def train():
    pixels = np.random.default_rng(11).normal(size=(12, 3, 12, 12)).astype("float32")  # <images>
    answers = np.arange(12) % 4  # <kinds>
    torch.manual_seed(11)
    network = SmallResNet()
    updates = torch.optim.SGD(network.parameters(), momentum=0.9, nesterov=True, lr=0.02)  # <sgd>
    for round_number in range(3):
        chosen = slice(round_number * 4, (round_number + 1) * 4)
        expected = torch.from_numpy(answers[chosen])
        given = torch.from_numpy(pixels[chosen])  # <batch>
        scores = network(given)  # <call>
        loss = F.cross_entropy(scores, expected, label_smoothing=0.1)  # <loss>
        network.zero_grad()  # <zero>
        loss.backward()  # <backward>
        nn.utils.clip_grad_value_(network.classify.parameters(), 0.2)  # <clip>
        updates.step()  # <step>
        print(round_number, loss.item())
    return network, updates


network, updates = train()
