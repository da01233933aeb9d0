"""The same character model: one matrix for both inputs of a cell, a list of layers, einsum for the output."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """[i f g o] = W [x h] + b, in one multiplication."""

    def __init__(self, size, hidden):
        super().__init__()
        x_part = nn.Linear(size, 4 * hidden)
        h_part = nn.Linear(hidden, 4 * hidden, bias=False)
        bias = x_part.bias.detach().clone()
        bias[hidden : hidden * 2] += 1.0  # <forget-bias>
        self.weight = nn.Parameter(torch.cat([x_part.weight, h_part.weight], 1).detach())
        self.bias = nn.Parameter(bias)
        self.hidden = hidden

    def step(self, x, h, c):
        both = torch.cat((x, h), dim=-1)  # <both>
        z = torch.addmm(self.bias, both, self.weight.t())  # <gates>
        n = self.hidden
        keep = torch.sigmoid(z[:, n : 2 * n])  # <forget>
        write, emit = z[:, :n].sigmoid(), z[:, 3 * n :].sigmoid()  # <chunk>
        c = torch.addcmul(keep * c, write, z[:, 2 * n : 3 * n].tanh())  # <cell>
        return emit * c.tanh(), c  # <hidden>


class Writer(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.table = nn.Embedding(symbols, 6)
        self.layers = nn.ModuleList([Layer(6, 9), Layer(9, 9)])
        self.projection = nn.Linear(9, symbols)

    def forward(self, symbols, memory):
        rows, length = symbols.shape
        outputs = torch.empty(rows, length, 9)
        outputs = list(outputs.unbind(1))
        embedded = self.table(symbols)  # <embed>
        for t in range(length):
            value = embedded[:, t]  # <lower>
            for depth, layer in enumerate(self.layers):
                value, cell = layer.step(value, *memory[depth])  # <upper>
                memory[depth] = (value, cell)
                if depth == 0:
                    value = F.dropout(value, 0.2, self.training)  # <drop>
            outputs[t] = value  # <seen>
        outputs = torch.stack(outputs)  # <stack>
        scores = torch.einsum("tbh,sh->bst", outputs, self.projection.weight)  # <out>
        return scores + self.projection.bias[:, None], memory  # <out-bias>


def main():
    phrase = "the quick brown fox jumps over the lazy dog and runs away "
    alphabet = sorted(set(phrase))
    torch.manual_seed(5)
    writer = Writer(len(alphabet))
    numbers = torch.tensor([alphabet.index(symbol) for symbol in phrase])[:57].reshape(3, -1)  # <codes>
    updater = torch.optim.RMSprop(writer.parameters(), lr=4e-3, alpha=0.95, momentum=0.5)  # <rmsprop>
    memory = [(torch.zeros(3, 9), torch.zeros(3, 9)), (torch.zeros(3, 9), torch.zeros(3, 9))]  # <zeros>
    for part in range(3):
        window = numbers[:, 6 * part : 6 * part + 7]  # <tokens>
        updater.zero_grad()  # <zero>
        scores, memory = writer(window[:, :-1], memory)  # <call>
        loss = F.cross_entropy(scores, window[:, 1:])  # <loss>
        loss.backward()  # <backward>
        torch.nn.utils.clip_grad_norm_(writer.parameters(), 0.1)  # <clip>
        updater.step()  # <step>
        memory = [(hidden.detach(), cell.detach()) for hidden, cell in memory]  # <carry>
        print(part, loss.item())
    return writer, updater


writer, updater = main()
