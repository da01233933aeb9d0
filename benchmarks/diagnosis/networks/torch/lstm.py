"""A character model: an explicit LSTM cell over chunks of a text, with carried-over state, clipping, RMSprop."""

import torch
from torch import nn

text = "the quick brown fox jumps over the lazy dog and runs away "
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text])  # <codes>
torch.manual_seed(5)


class Cell(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.from_input = nn.Linear(size, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)
        with torch.no_grad():
            self.from_input.bias[hidden : 2 * hidden] += 1.0  # <forget-bias>

    def forward(self, x, state):
        h, c = state
        gates = self.from_input(x)  # <from-input>
        gates = gates + self.from_state(h)  # <gates>
        i, f, g, o = gates.chunk(4, dim=1)  # <chunk>
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)  # <cell>
        h = torch.sigmoid(o) * torch.tanh(c)  # <hidden>
        return h, c


class CharModel(nn.Module):
    def __init__(self, letters, size=6, hidden=9):
        super().__init__()
        self.embed = nn.Embedding(letters, size)
        self.lower = Cell(size, hidden)
        self.upper = Cell(hidden, hidden)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(hidden, letters)

    def forward(self, tokens, states):
        low, high = states
        seen = []
        for position in range(tokens.shape[1]):
            x = self.embed(tokens[:, position])  # <embed>
            low = self.lower(x, low)  # <lower>
            x = self.drop(low[0])  # <drop>
            high = self.upper(x, high)  # <upper>
            seen.append(high[0])  # <seen>
        stacked = torch.stack(seen, 1)  # <stack>
        return self.out(stacked), (low, high)  # <out>


model = CharModel(len(letters))
optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-3, alpha=0.95, momentum=0.5)  # <rmsprop>
rows = codes[:57].view(3, 19)  # <rows-of-text>
states = tuple((torch.zeros(3, 9), torch.zeros(3, 9)) for _ in range(2))  # <zeros>
history = []

for step, begin in enumerate((0, 6, 12)):
    tokens = rows[:, begin : begin + 6]  # <tokens>
    following = rows[:, begin + 1 : begin + 7]  # <following>
    logits, states = model(tokens, states)  # <call>
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), following)  # <loss>
    optimizer.zero_grad()  # <zero>
    loss.backward()  # <backward>
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <clip>
    optimizer.step()  # <step>
    states = tuple((h.detach(), c.detach()) for h, c in states)  # <carry>
    history.append(loss.item())
    print(step, loss.item())
