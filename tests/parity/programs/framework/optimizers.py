"""Every optimizer of PyTorch, with the for-loop and foreach implementations, including LBFGS with a closure."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn, optim

from tests.parity.training_run import left_behind, trained

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (optim.Adam, {"amsgrad": True, "foreach": True}),
    (optim.AdamW, {"fused": True}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    (optim.RMSprop, {"centered": True, "foreach": True}),
    (optim.Adagrad, {"foreach": True}),
    (optim.Adadelta, {"foreach": True}),
    (optim.Adamax, {"foreach": True}),
    (optim.NAdam, {"foreach": True}),
    (optim.RAdam, {"foreach": False}),
    (optim.Rprop, {"foreach": True}),
    (optim.ASGD, {"foreach": False}),
]


def program() -> Any:
    data, answers = torch.randn(5, 3), []
    for kind, settings in KINDS:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = kind(model.parameters(), **settings)
        answers.append(trained(model, lambda: model(data).square().mean(), optimizer=optimizer))
    model = nn.Linear(3, 1)
    searching = optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        searching.zero_grad()
        loss: torch.Tensor = (model(data) - 1).square().mean()
        loss.backward()
        return loss

    return answers, [searching.step(closure) for _ in range(2)], left_behind(model)
