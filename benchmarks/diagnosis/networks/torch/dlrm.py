"""A recommender: embedding bags, pairwise interaction, Adagrad with two parameter groups, and an accumulated click rate."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(37)
SIZES, DIM, ROWS = (11, 7, 5), 6, 8
generator = np.random.default_rng(37)


def read_rows(count):
    dense = generator.lognormal(size=(count, 4)).astype(np.float32)  # <dense>
    bags = []
    for size in SIZES:
        lengths = generator.integers(1, 4, count)
        offsets = np.concatenate([[0], lengths.cumsum()[:-1]])  # <offsets>
        bags.append((torch.from_numpy(generator.integers(0, size, lengths.sum())), torch.from_numpy(offsets)))  # <bags>
    clicks = (dense[:, 0] > 1).astype(np.float32)  # <clicks>
    return torch.from_numpy(dense), bags, torch.from_numpy(clicks)


def tower(*widths):
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = tower(4, 10, DIM)
        self.tables = nn.ModuleList(nn.EmbeddingBag(size, DIM, mode="mean") for size in SIZES)  # <tables-init>
        self.tables.append(nn.EmbeddingBag(9, DIM, mode="sum"))
        self.top = tower(DIM + 10, 8)
        self.click = nn.Linear(8, 1)
        self.register_buffer("pairs", torch.triu_indices(5, 5, 1))  # <pairs-init>

    def forward(self, dense, bags):
        x = torch.log1p(dense)  # <log1p>
        x = self.bottom(x)  # <bottom>
        vectors = [x]
        for table, (indices, offsets) in zip(self.tables, bags):
            vectors.append(table(indices, offsets))  # <table>
        crossed = (bags[0][0][bags[0][1]] + bags[1][0][bags[1][1]]) % 9  # <crossed>
        vectors.append(self.tables[3](crossed[:, None]))  # <cross-table>
        stacked = torch.stack(vectors, dim=1)  # <stacked>
        products = torch.bmm(stacked, stacked.transpose(1, 2))  # <products>
        pairs = products[:, self.pairs[0], self.pairs[1]]  # <pairs>
        joined = torch.cat((x, pairs), 1)  # <joined>
        return self.click(self.top(joined)).squeeze(-1)  # <click>


model = DLRM()
groups = [{"params": model.tables.parameters(), "lr": 0.1}, {"params": model.bottom.parameters()}]  # <groups>
groups.append({"params": [*model.top.parameters(), *model.click.parameters()], "lr_decay": 0.05})
optimizer = torch.optim.Adagrad(groups, lr=0.04)  # <adagrad>
rate = torch.zeros(())

for step in range(3):
    dense, bags, clicks = read_rows(ROWS)  # <read>
    logits = model(dense, bags)  # <call>
    weights = torch.where(clicks > 0, 2.0, 1.0)  # <weights>
    loss = F.binary_cross_entropy_with_logits(logits, clicks, weight=weights)  # <loss>
    optimizer.zero_grad()  # <zero>
    loss.backward()  # <backward>
    optimizer.step()  # <step>
    rate = rate * step / (step + 1) + torch.sigmoid(logits.detach()).mean() / (step + 1)  # <rate>
    print(step, loss.item(), rate.item())
