"""Training programs that tests run plain and under capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

RANKS = """\
def ranks(name, kind):
    for rank in range(2):
        if os.fork() == 0:
            try:
                one(name, rank, kind)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
    return sorted(os.wait()[1] for _ in range(2))
"""
"""Part of a program for two processes: forks them, runs `one(name, rank, kind)` in each, and returns how they ended."""


@dataclass
class Trained:
    """Everything that a training run leaves."""

    losses: list[Tensor]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    random_state: Tensor


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(8 * 2 * 2, 3)
        self.register_buffer("scale", torch.full((3,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.conv1(x))))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.dropout(x.flatten(1))
        result: Tensor = self.fc(x) * self.get_buffer("scale")
        return result


def train_convnet(steps: int = 3) -> Trained:
    """Forward, backward and AdamW on random images, with a fixed seed."""
    torch.manual_seed(0)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        images, labels = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return _left_behind(model, losses)


def train_transformer(steps: int = 3) -> Trained:
    """A tiny GPT-2 with random weights: forward, backward and AdamW on random tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(50, (2, 16))
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return _left_behind(model, losses)


PROGRAMS: dict[str, Callable[..., Trained]] = {"convnet": train_convnet, "transformer": train_transformer}


def _left_behind(model: nn.Module, losses: list[Tensor]) -> Trained:
    return Trained(
        losses,
        {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None},
        {name: value.detach().clone() for name, value in model.state_dict().items()},
        torch.get_rng_state(),
    )
