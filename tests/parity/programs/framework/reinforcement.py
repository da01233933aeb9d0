"""Actor and critic share a body; actions are sampled, returns discounted, and a target network is updated softly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical, Normal

from tests.parity.training_run import left_behind


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, state: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        hidden = self.body(state).tanh()
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


def program() -> Any:
    agent = Agent()
    target = copy.deepcopy(agent).requires_grad_(False)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        states, rewards = torch.randn(5, 4), Normal(0.0, 1.0).sample((5,))
        actions, values = agent(states)
        chosen = actions.sample()
        with torch.no_grad():
            wanted = rewards + 0.9 * target(states)[1]
        loss = -(actions.log_prob(chosen) * (wanted - values).detach()).mean() + (wanted - values).square().mean()
        loss = loss - 0.01 * actions.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), agent.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        losses.append(loss)
    return losses, left_behind(agent), left_behind(target)
