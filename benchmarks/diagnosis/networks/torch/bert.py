"""A masked language model with two post-norm layers: segments, padding, SDPA, dropout, AdamW with a linear schedule."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LENGTH, PAD, MASK = 30, 16, 4, 9, 0, 1

torch.manual_seed(21)
random = np.random.default_rng(21)


def batch():
    ids = random.integers(2, VOCABULARY, (4, LENGTH))
    lengths = np.array([9, 7, 9, 5])  # <lengths>
    ids[np.arange(LENGTH)[None] >= lengths[:, None]] = PAD
    labels = np.full_like(ids, -100)
    chosen = (random.random(ids.shape) < 0.3) & (ids != PAD)
    labels[chosen] = ids[chosen]
    ids[chosen] = MASK
    segments = (np.arange(LENGTH) >= 4).astype(np.int64)[None].repeat(4, 0)  # <segments>
    return torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(labels)


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate = nn.Linear(WIDTH, 2 * WIDTH)
        self.dense = nn.Linear(2 * WIDTH, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)  # <output_norm-init>
        self.dropout = nn.Dropout(0.1)

    def heads(self, x):
        return x.view(x.shape[0], -1, HEADS, WIDTH // HEADS).transpose(1, 2)  # <heads-view>

    def forward(self, hidden, mask):
        query = self.heads(self.query(hidden))  # <query>
        key = self.heads(self.key(hidden))  # <key>
        value = self.heads(self.value(hidden))  # <value>
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # <sdpa>
        context = context.transpose(1, 2).reshape(hidden.shape)
        attended = self.dropout(self.output(context))  # <attended>
        hidden = self.attention_norm(hidden + attended)  # <attention-norm>
        between = self.intermediate(hidden)  # <intermediate>
        between = F.gelu(between)  # <gelu>
        between = self.dropout(self.dense(between))  # <dense>
        return self.output_norm(hidden + between)  # <output-norm>


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList([EncoderLayer(), EncoderLayer()])
        self.transform = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, ids, segments):
        hidden = self.words(ids) + self.kinds(segments)  # <words>
        hidden = hidden + self.positions(torch.arange(ids.shape[1]))  # <positions>
        hidden = F.dropout(self.norm(hidden), 0.1, self.training)  # <embedded>
        mask = torch.zeros(ids.shape).masked_fill(ids == PAD, -1e9)[:, None, None]  # <padding>
        for depth, layer in enumerate(self.layers):
            hidden = layer(hidden, mask)  # <layer>
        hidden = torch.tanh(self.transform(hidden))  # <transform>
        return hidden @ self.words.weight.T + self.bias  # <decode>


bert = Bert()
optimizer = torch.optim.AdamW(bert.parameters(), lr=2e-3, eps=1e-6, weight_decay=0.05)  # <adamw>
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=4)  # <schedule>

for step in range(2):
    ids, segments, labels = batch()  # <batch>
    logits = bert(ids, segments)  # <call>
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)  # <loss>
    bert.zero_grad()  # <zero>
    loss.backward()  # <backward>
    total = torch.nn.utils.clip_grad_norm_(bert.parameters(), max_norm=1.0)  # <clip>
    optimizer.step()  # <step>
    scheduler.step()  # <schedule-step>
    print(step, loss.item(), total.item())
