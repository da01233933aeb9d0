"""Recurrent networks over packed sequences, cells called one by one, projections, truncated backpropagation through time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from tests.parity.training_run import trained


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6, padding_idx=0)
        self.long = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True, dropout=0.2, proj_size=4)
        self.cell = nn.GRUCell(8, 5)
        self.plain = nn.RNN(5, 3, nonlinearity="relu", batch_first=True)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.long(packed)[0], batch_first=True)
        state, states = torch.zeros(len(tokens), 5), []
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state.detach() if time == 2 else state)
            states.append(state)
        answer: torch.Tensor = self.plain(torch.stack(states, 1))[0]
        return answer


def program() -> Any:
    model = Tagger().train()
    tokens = pad_sequence([torch.randint(1, 20, (n,)) for n in (3, 6, 4)], batch_first=True)
    lengths = torch.tensor([3, 6, 4])
    return trained(model, lambda: model(tokens, lengths).square().mean())
