"""A recurrent classifier in PyTorch: a GRU over time, written by hand, with momentum."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, TOKENS, VOCABULARY, BATCH = 8, 4, 17, 3

numbers = np.random.default_rng(3)


def matrix(*shape):
    return nn.Parameter(torch.from_numpy(numbers.normal(0, 0.4, shape).astype(np.float32)))


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.x_gates, self.h_gates = matrix(WIDTH, 2 * WIDTH), matrix(WIDTH, 2 * WIDTH)
        self.bias = matrix(2 * WIDTH)
        self.x_new, self.h_new = matrix(WIDTH, WIDTH), matrix(WIDTH, WIDTH)

    def forward(self, h, x):
        gates = torch.sigmoid(x @ self.x_gates + h @ self.h_gates + self.bias)  # <gates>
        reset, update = gates.chunk(2, -1)  # <split>
        new = torch.tanh(x @ self.x_new + (reset * h) @ self.h_new)  # <new>
        return update * h + (1 - update) * new  # <mix>


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = matrix(VOCABULARY, WIDTH)
        self.cell = Cell()
        self.head = matrix(WIDTH, VOCABULARY)

    def forward(self, ids):
        x = F.embedding(ids, self.tokens) * 2.0  # <embed>
        h, states = torch.zeros(BATCH, WIDTH), []  # <start>
        for step in range(TOKENS):
            h = self.cell(h, x[:, step])  # <advance>
            states.append(h)
        return torch.stack(states, 1) @ self.head / math.sqrt(WIDTH)  # <head>


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # <optimizer>
for step in range(2):
    window = numbers.integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    ids, targets = torch.from_numpy(window[:, :-1].copy()), torch.from_numpy(window[:, 1:].copy())  # <shift>
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())  # <loss>
    optimizer.zero_grad()
    loss.backward()  # <backward>
    optimizer.step()  # <update>
    print(f"step {step} loss {loss.item()!r}")
