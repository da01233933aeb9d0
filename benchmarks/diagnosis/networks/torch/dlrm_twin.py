"""The same recommender: bags by index_add, one tower class, interaction through a mask, losses by softplus."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear, softplus


class Bag(nn.Module):
    def __init__(self, size, dim, average):
        super().__init__()
        self.weight = nn.Parameter(nn.EmbeddingBag(size, dim).weight.detach())
        self.average = average

    def forward(self, ids, starts):
        ends = torch.cat([starts[1:], torch.tensor([len(ids)])])
        owner = torch.repeat_interleave(torch.arange(len(starts)), ends - starts)  # <owner>
        rows = self.weight[ids]  # <rows>
        summed = torch.zeros(len(starts), self.weight.shape[1]).index_add(0, owner, rows)  # <table>
        return summed / (ends - starts)[:, None] if self.average else summed  # <average>


class Recommender(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.dense1, self.dense2 = nn.Linear(4, 10), nn.Linear(10, dim)
        self.bags = nn.ModuleList([Bag(11, dim, True), Bag(7, dim, True), Bag(5, dim, True), Bag(9, dim, False)])
        self.joint, self.answer = nn.Linear(dim + 10, 8), nn.Linear(8, 1)

    def forward(self, amounts, features):
        logs = (amounts + 1).log()  # <log1p>
        numbers = torch.relu(self.dense1(logs))  # <bottom>
        numbers = torch.relu(self.dense2(numbers))  # <bottom2>
        found = [bag(ids, starts) for bag, (ids, starts) in zip(self.bags, features)]  # <bags>
        (a, a_starts), (b, b_starts), _ = features
        both = torch.remainder(a[a_starts] + b[b_starts], 9)  # <crossed>
        found.append(self.bags[3](both, torch.arange(len(both))))  # <cross-table>
        everything = torch.stack([numbers, *found], 1)  # <stacked>
        similar = torch.einsum("bid,bjd->bij", everything, everything)  # <products>
        upper = torch.ones(5, 5).triu(diagonal=1).bool()  # <upper>
        flat = torch.hstack((numbers, similar.masked_select(upper).view(-1, 10)))  # <joined>
        hidden = torch.relu(self.joint(flat))  # <top>
        return linear(hidden, self.answer.weight, self.answer.bias).flatten()  # <click>


def rows(source, count, sizes=(11, 7, 5)):
    amounts = source.lognormal(size=(count, 4)).astype("float32")  # <dense>
    features = []
    for size in sizes:
        lengths = source.integers(1, 4, count)
        ids = source.integers(0, size, lengths.sum())
        features.append((torch.as_tensor(ids), torch.as_tensor(lengths.cumsum() - lengths)))  # <offsets>
    return torch.as_tensor(amounts), features, torch.as_tensor(amounts[:, 0] > 1)


torch.manual_seed(37)
net = Recommender()
rule = torch.optim.Adagrad(
    [
        {"params": [net.dense1.weight, net.dense1.bias, net.dense2.weight, net.dense2.bias]},
        {"params": [*net.joint.parameters(), *net.answer.parameters()], "lr_decay": 0.05},
        {"params": [bag.weight for bag in net.bags], "lr": 0.1},  # <groups>
    ],
    lr=0.04,
)
source = np.random.default_rng(37)
seen = []
for turn in range(3):
    amounts, features, clicked = rows(source, 8)  # <read>
    score = net(amounts, features)  # <call>
    each = torch.where(clicked, 2 * softplus(-score), softplus(score))  # <loss>
    loss = each.mean()  # <mean>
    rule.zero_grad()  # <zero>
    loss.backward()  # <backward>
    rule.step()  # <step>
    seen.append(score.detach().sigmoid().mean())  # <rate>
    print(turn, loss.item(), (sum(seen) / len(seen)).item())
