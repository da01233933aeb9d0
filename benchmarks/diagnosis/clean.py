"""Pairs without a fault: the same program in another setting, or the same computation written in another way."""

from __future__ import annotations

from typing import Final

from benchmarks.diagnosis.programs import Edit, Program, networks
from benchmarks.diagnosis.suite import Clean

_NAMES: Final = networks()
_ANYWHERE: Final = "*"
_LAYER_NORM: Final = "(({x}) - ({x}).mean(-1, keepdim=True)) * torch.rsqrt(({x}).var(-1, keepdim=True, unbiased=False) + 1e-5) * {n}.weight + {n}.bias"


def _set(kind: str, setting: str, *scripts: str) -> list[Clean]:
    """Each script compared with itself in another setting."""
    return [
        Clean(kind, f"{script} with {setting}", Program(script), Program(script, settings=(setting,)))
        for script in scripts
    ]


def _edited(kind: str, name: str, *edits: tuple[str, str, str], rounding: float = 1e-4) -> Clean:
    """A script compared with itself after edits that change nothing; the name begins with the script's."""
    script = name.split(maxsplit=1)[0]
    return Clean(kind, name, Program(script), Program(script, tuple(Edit(*edit) for edit in edits)), rounding)


def _optimizer(network: str, mark: str, word: str) -> Clean:
    """Another implementation of the optimizer on that line, selected by a keyword at the end of its arguments."""
    line = {"resnet": "nesterov=True)", "t5": "eps=1e-8)", "gpt": "betas=(0.9, 0.95))", "unet": "weight_decay=1e-4)"}
    line |= {"mlp": "weight_decay=1e-2)", "lstm": "momentum=0.5)", "dlrm": "lr=0.04)", "moe": "lr=5e-3)"}
    end = line[network]
    return _edited("optimizer", f"{network} {word}", (mark, end, f"{end[:-1]}, {word}=True)"))


SETTINGS: Final = (
    *_set("twice", "again", *_NAMES),
    *_set("threads", "threads=2", "resnet", "unet", "gpt", "diffusion", "bert", "tcn"),
    *_set("oneDNN", "mkldnn=off", "resnet", "unet", "diffusion", "vit", "tcn"),
    *_set("attention", "sdpa=math", "bert", "vit", "vit_twin"),
    *_set("deterministic", "deterministic", "gnn", "moe", "dlrm"),
    *(Clean("refactored", f"{name} refactored", Program(name), Program(f"{name}_twin")) for name in _NAMES),
)

OPTIMIZERS: Final = (
    _optimizer("mlp", "sgd", "foreach"),
    _optimizer("resnet", "sgd", "foreach"),
    _optimizer("unet", "adam", "foreach"),
    _optimizer("lstm", "rmsprop", "foreach"),
    _optimizer("gpt", "adamw", "foreach"),
    _optimizer("t5", "adagrad", "foreach"),
    _optimizer("mlp", "sgd", "fused"),
    _optimizer("unet", "adam", "fused"),
    _optimizer("gpt", "adamw", "fused"),
    _optimizer("moe", "adam", "fused"),
    _edited("optimizer", "mlp keeps zeros", ("zero", "zero_grad()", "zero_grad(set_to_none=False)")),
    _edited("optimizer", "resnet drops gradients", ("zero", "set_to_none=False", "set_to_none=True")),
)

PRECISION: Final = (
    _edited(
        "float64",
        "mlp in float64",
        (_ANYWHERE, "Classifier(6, 10, 3)", "Classifier(6, 10, 3).double()"),
        (_ANYWHERE, "x = torch.from_numpy(data[rows])", "x = torch.from_numpy(data[rows]).double()"),
        rounding=1e-3,
    ),
    _edited(
        "float64",
        "resnet in float64",
        (_ANYWHERE, "net = ResNet()", "net = ResNet().double()"),
        ("batch", "epoch * 4 + 4])", "epoch * 4 + 4]).double()"),
        rounding=1e-3,
    ),
    _edited(
        "float64",
        "vit in float64",
        (_ANYWHERE, "vit = ViT()", "vit = ViT().double()"),
        ("rows", "images[step::3]", "images[step::3].double()"),
        rounding=1e-3,
    ),
    _edited(
        "float64",
        "moe in float64",
        (_ANYWHERE, "model = Model()", "model = Model().double()"),
        (
            "batch",
            "(series[part]), torch.from_numpy(goals[part])",
            "(series[part]).double(), torch.from_numpy(goals[part]).double()",
        ),
        (_ANYWHERE, "counts = torch.zeros(EXPERTS)", "counts = torch.zeros(EXPERTS).double()"),
        rounding=1e-3,
    ),
    _edited(
        "autocast",
        "resnet under autocast",
        ("call", "output = net(batch)", "output = torch.autocast('cpu', torch.bfloat16)(net.forward)(batch).float()"),
        rounding=0.1,
    ),
    _edited(
        "autocast",
        "gpt under autocast",
        ("call", "logits = model(ids)", "logits = torch.autocast('cpu', torch.bfloat16)(model.forward)(ids).float()"),
        rounding=0.1,
    ),
    _edited(
        "autocast",
        "vit under autocast",
        ("call", "logits = vit(x)", "logits = torch.autocast('cpu', torch.bfloat16)(vit.forward)(x).float()"),
        rounding=0.1,
    ),
    _edited(
        "autocast",
        "mlp under autocast",
        ("call", "logits = model(x)", "logits = torch.autocast('cpu', torch.bfloat16)(model.forward)(x).float()"),
        rounding=0.1,
    ),
)

MEMORY: Final = (
    _edited(
        "channels last",
        "resnet channels last",
        (_ANYWHERE, "net = ResNet()", "net = ResNet().to(memory_format=torch.channels_last)"),
        ("batch", "epoch * 4 + 4])", "epoch * 4 + 4]).to(memory_format=torch.channels_last)"),
    ),
    _edited(
        "channels last",
        "unet channels last",
        (_ANYWHERE, "unet = UNet()", "unet = UNet().to(memory_format=torch.channels_last)"),
        ("call", "unet(x)", "unet(x.to(memory_format=torch.channels_last))"),
    ),
    _edited(
        "channels last",
        "diffusion channels last",
        ("enter", "self.enter(x)", "self.enter(x.to(memory_format=torch.channels_last))"),
    ),
    _edited(
        "contiguous",
        "gpt contiguous heads",
        ("q", ".transpose(1, 2)", ".transpose(1, 2).contiguous()"),
        ("k", ".transpose(1, 2)", ".transpose(1, 2).contiguous()"),
        ("v", ".transpose(1, 2)", ".transpose(1, 2).contiguous()"),
    ),
    _edited("contiguous", "vit contiguous patches", ("flatten", ".transpose(1, 2)", ".transpose(1, 2).contiguous()")),
    _edited(
        "contiguous",
        "lstm contiguous gates",
        ("chunk", "gates.chunk(4, dim=1)", "(part.contiguous() for part in gates.chunk(4, dim=1))"),
    ),
    _edited(
        "contiguous",
        "dlrm cloned vectors",
        ("stacked", "torch.stack(vectors, dim=1)", "torch.stack([v.clone() for v in vectors], dim=1)"),
    ),
    _edited(
        "in place",
        "resnet out of place",
        ("stem", "F.relu_(", "F.relu("),
        (_ANYWHERE, "nn.ReLU(inplace=True)", "nn.ReLU()"),
        ("shortcut", "y += self.shortcut(x)", "y = y + self.shortcut(x)"),
    ),
    _edited("in place", "gan out of place", ("g-bn", "torch.relu_(", "torch.relu(")),
    _edited("in place", "mlp in place", ("residual", "y.relu()", "y.relu_()")),
    _edited(
        "in place",
        "diffusion in place",
        (_ANYWHERE, "F.silu(self.norm1(x))", "F.silu(self.norm1(x), inplace=False)"),
        ("residual", "(x + h)", "h.add(x)"),
    ),
)

SPELLINGS: Final = (
    _edited(
        "einsum", "gpt scores by einsum", ("scores", "q @ k.transpose(-2, -1)", 'torch.einsum("bhqd,bhkd->bhqk", q, k)')
    ),
    _edited("einsum", "diffusion scores by matmul", ("scores", 'torch.einsum("bcq,bck->bqk", q, k)', "q.mT @ k")),
    _edited(
        "einsum", "t5 scores by einsum", ("scores", "q @ k.transpose(2, 3)", 'torch.einsum("bhid,bhjd->bhij", q, k)')
    ),
    _edited(
        "einsum",
        "gnn products by einsum",
        ("transform", "x @ self.weight", 'torch.einsum("ni,io->no", x, self.weight)'),
    ),
    _edited(
        "norm written out", "gpt layer norm", ("norm2", "self.norm2(x)", _LAYER_NORM.format(x="x", n="self.norm2"))
    ),
    _edited("norm written out", "vit layer norm", ("ln2", "self.ln2(x)", _LAYER_NORM.format(x="x", n="self.ln2"))),
    _edited(
        "norm written out", "moe layer norm", ("moe", "moe(norm(x))", f"moe({_LAYER_NORM.format(x='x', n='norm')})")
    ),
    _edited(
        "norm written out",
        "t5 norm by the library",
        ("rsqrt", "x * torch.rsqrt(variance + self.eps)", "F.rms_norm(x, (D,), None, self.eps)"),
    ),
    _edited(
        "loss",
        "mlp softmax and logarithm",
        ("loss", "F.cross_entropy(logits, target)", "F.nll_loss(logits.softmax(1).log(), target)"),
    ),
    _edited(
        "loss",
        "gpt loss by gather",
        (
            "loss",
            "F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))",
            "-logits.log_softmax(-1).gather(2, targets[..., None]).mean()",
        ),
    ),
    _edited(
        "loss",
        "bert log softmax",
        ("loss", "F.cross_entropy(logits.flatten(0, 1)", "F.nll_loss(F.log_softmax(logits.flatten(0, 1), 1)"),
    ),
    _edited(
        "convolution",
        "unet last as Linear",
        (
            "last",
            "self.last(deep).squeeze(1)",
            "F.linear(deep.movedim(1, -1), self.last.weight.flatten(1), self.last.bias).squeeze(-1)",
        ),
    ),
    _edited(
        "convolution",
        "vit patches as Linear",
        (
            "patches",
            "self.patches(images)",
            "nn.functional.linear(images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).squeeze(1), self.patches.weight.flatten(1), self.patches.bias).permute(0, 3, 1, 2)",
        ),
    ),
    _edited("order of branches", "t5 gate", ("gated", "gate * self.wi1(x)", "self.wi1(x) * gate")),
    _edited(
        "order of branches",
        "lstm cell",
        (
            "cell",
            "torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)",
            "torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c",
        ),
    ),
    _edited(
        "order of branches",
        "tcn gate",
        ("gated", "torch.tanh(value) * torch.sigmoid(gate)", "torch.sigmoid(gate) * torch.tanh(value)"),
    ),
    _edited(
        "order of branches",
        "bert value first",
        (
            "query",
            "query = self.heads(self.query(hidden))",
            "value = self.heads(self.value(hidden)); query = self.heads(self.query(hidden))",
        ),
        ("value", "value = self.heads(self.value(hidden))", "pass"),
    ),
    _edited(
        "order of branches",
        "unet totals",
        ("total", "p.sum((1, 2)) + mask.sum((1, 2))", "mask.sum((1, 2)) + p.sum((1, 2))"),
    ),
    _edited(
        "more operators",
        "gpt logs a norm",
        ("call", "logits = model(ids)", "logits = model(ids); logits.detach().norm().item()"),
    ),
    _edited(
        "more operators",
        "resnet evaluates in between",
        (
            "call",
            "output = net(batch)",
            "net.eval(); torch.no_grad()(net.__call__)(batch); net.train(); output = net(batch)",
        ),
    ),
    _edited("more operators", "mlp times one", ("inner", "self.inner(x)", "self.inner(x) * 1.0 + 0.0")),
)

WHOLE_STEPS: Final = (
    _edited(
        "checkpoint",
        "gpt checkpoints layers",
        ("layer", "layer(x)", "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"),
    ),
    _edited(
        "checkpoint",
        "vit checkpoints blocks",
        ("blocks", "self.blocks(x)", "torch.utils.checkpoint.checkpoint(self.blocks, x, use_reentrant=False)"),
    ),
    _edited(
        "checkpoint",
        "bert checkpoints layers",
        ("layer", "layer(hidden, mask)", "torch.utils.checkpoint.checkpoint(layer, hidden, mask, use_reentrant=False)"),
    ),
    _edited(
        "checkpoint",
        "diffusion checkpoints blocks",
        ("block", "block(x, emb)", "torch.utils.checkpoint.checkpoint(block, x, emb, use_reentrant=False)"),
    ),
    _edited(
        "permuted batch",
        "resnet permuted batch",
        ("images", 'astype("float32")', 'astype("float32")[np.arange(12) ^ 1]'),
        ("kinds", "np.arange(12) % 4", "(np.arange(12) % 4)[np.arange(12) ^ 1]"),
    ),
    _edited(
        "permuted batch",
        "mlp permuted batch",
        ("scaled", "data.std(0)", "data.std(0); data, labels = data[np.arange(24) ^ 3], labels[np.arange(24) ^ 3]"),
    ),
    _edited(
        "permuted batch",
        "t5 permuted batch",
        ("rows", "sequences[4 * step : 4 * step + 4]", "sequences[4 * step : 4 * step + 4].flip(0)"),
    ),
    _edited(
        "micro-batches",
        "t5 in two parts",
        ("call", "out = t5(source, given)", "pass"),
        (
            "loss",
            "loss = F.cross_entropy(out.view(-1, V), answer.reshape(-1))",
            "parts = [F.cross_entropy(t5(source[i : i + 2], given[i : i + 2]).view(-1, V), answer[i : i + 2].reshape(-1)) / 2 for i in (0, 2)]",
        ),
        ("backward", "loss.backward()", "[part.backward() for part in parts]; loss = sum(parts).detach()"),
    ),
    _edited(
        "micro-batches",
        "gpt in two parts",
        ("call", "logits = model(ids)", "pass"),
        (
            "loss",
            "loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))",
            "parts = [F.cross_entropy(model(ids[i : i + 1])[0], targets[i]) / 2 for i in (0, 1)]",
        ),
        ("backward", "loss.backward()", "[part.backward() for part in parts]; loss = sum(parts).detach()"),
    ),
    _edited(
        "compile",
        "mlp by aot_eager",
        (_ANYWHERE, "model = Classifier(6, 10, 3)", 'model = torch.compile(Classifier(6, 10, 3), backend="aot_eager")'),
    ),
    _edited(
        "compile", "gpt by aot_eager", (_ANYWHERE, "model = GPT()", 'model = torch.compile(GPT(), backend="aot_eager")')
    ),
    _edited(
        "compile",
        "mlp by Inductor",
        (_ANYWHERE, "model = Classifier(6, 10, 3)", "model = torch.compile(Classifier(6, 10, 3))"),
    ),
)

CLEAN: Final = (*SETTINGS, *OPTIMIZERS, *PRECISION, *MEMORY, *SPELLINGS, *WHOLE_STEPS)
