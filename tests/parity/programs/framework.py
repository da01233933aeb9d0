"""Programs that use features of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim
from torch.ao.quantization import FakeQuantize, quantize_dynamic
from torch.ao.quantization.observer import MovingAverageMinMaxObserver
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from tests.parity.training_run import left_behind, trained


def attention() -> Any:
    """Transformer layers of PyTorch: fast path in inference, masks, decoders, attention that returns weights."""
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
    source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    learned = trained(model, lambda: model(source, target, tgt_mask=mask, tgt_is_causal=True).square().mean())
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    hidden = torch.tensor([[False, False, False, True, True], [False] * 5])
    with torch.inference_mode():
        fast = layer(source, src_key_padding_mask=hidden)
        attended = nn.MultiheadAttention(8, 2, batch_first=True).eval()(
            source, source, source, average_attn_weights=False
        )
    return learned, fast, attended


def averaged_weights() -> Any:
    """Stochastic weight averaging, moving averages, recomputed batch norm statistics, cyclic schedules."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.SiLU(), nn.Linear(6, 2))
    averaged, moving = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05)
    data = [torch.randn(4, 4) for _ in range(3)]
    for batch in data:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)
        moving.update_parameters(model)
    update_bn(data, averaged)
    return [left_behind(each) for each in (model, averaged, moving)]


def checkpointing() -> Any:
    """Activation checkpointing, both kinds, with dropout; sequences in segments; saved-tensor hooks."""
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.3)) for _ in range(4)))
    data = torch.randn(3, 6, requires_grad=True)

    def loss() -> torch.Tensor:
        x = checkpoint(blocks[0], data, use_reentrant=True)
        x = checkpoint(blocks[1], x, use_reentrant=False)
        x = checkpoint_sequential(blocks[2:], 2, x, use_reentrant=False)
        with save_on_cpu(), saved_tensors_hooks(lambda saved: saved.double(), lambda kept: kept.float()):
            answer: torch.Tensor = x.exp().square().mean()
        return answer

    return trained(blocks, loss), data.grad


def compiled() -> Any:
    """torch.compile: a compiled network is trained; its graph is one operator."""
    torch.compiler.reset()
    plain = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    model = torch.compile(plain, backend="aot_eager")
    data = torch.randn(3, 4)
    return trained(plain, lambda: model(data).square().mean())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        return x**3, positive

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class ScaledInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        ctx.mark_dirty(x)
        return x.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.scale, None  # type: ignore[attr-defined]


class Newer(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0].cos()


def custom_functions() -> Any:
    """Custom autograd functions: saved tensors, double backward, in-place writes, non-differentiable outputs."""
    x = torch.randn(4, 3, requires_grad=True)
    cubed, positive = Cube.apply(x)
    answer = ScaledInPlace.apply(cubed * 2, 0.5).sum() + torch.vmap(Newer.apply)(x).sum()
    (first,) = torch.autograd.grad(Cube.apply(x)[0].sum(), x, create_graph=True)
    first.square().sum().backward()
    answer.backward()
    return answer, positive, first, x.grad


class Noisy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index)) + torch.rand(3)


def data_workers() -> Any:
    """A data loader with worker processes, a weighted sampler and random changes of the data."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = WeightedRandomSampler([1.0] * 8, 8)
    losses = []
    for batch in DataLoader(Noisy(), batch_size=4, sampler=sampler, num_workers=1):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(model)


def functional_transforms() -> Any:
    """torch.func: per-sample gradients, Jacobians, Hessians, forward-mode products, ensembles by vmap."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    weights, data, labels = dict(model.named_parameters()), torch.randn(5, 3), torch.randn(5, 1)

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, weights, (x,)) - y).square().mean()

    def scalar(x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (x,)).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(weights, data, labels)
    parts, buffers = stack_module_state([nn.Linear(3, 2) for _ in range(3)])
    skeleton = nn.Linear(3, 2).to("meta")

    def one(parts: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = functional_call(skeleton, (parts, buffers), (x,))
        return answer

    return {
        "each": each,
        "jacobians": (jacrev(scalar)(data), jacfwd(scalar)(data)),
        "hessian": hessian(scalar)(data[0]),
        "jvp": jvp(scalar, (data,), (torch.ones_like(data),)),
        "vjp": vjp(scalar, data)[1](torch.tensor(2.0)),
        "ensemble": vmap(one, in_dims=(0, 0, None))(parts, buffers, data),
    }


class Told(torch.Tensor):
    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(function, "__name__", "?"))
        return super().__torch_function__(function, types, args, kwargs or {})


class Doubling(TorchFunctionMode):
    def __torch_function__(self, function: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        return answer * 2 if function is torch.sin else answer


@torch.jit.script
def _scripted(x: torch.Tensor) -> torch.Tensor:
    if bool((x > 0).any()):
        x = x + 1
    return x.relu()


def hooks_and_subclasses() -> Any:
    """Hooks on modules and gradients, a tensor subclass that logs, a function mode, scripted functions."""
    Told.calls.clear()
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), []
    model[0].register_forward_hook(lambda _, __, out: out * 1.5)
    model[1].register_full_backward_hook(lambda _, given, __: seen.append(given[0]))
    model[2].weight.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    model[2].register_forward_pre_hook(lambda _, args: (args[0] + 0.1,))
    data = torch.randn(4, 3)
    model(data).sum().backward()
    wrapped = (data.as_subclass(Told) + 1).relu().sum()
    with Doubling():
        doubled = torch.sin(data)
    return left_behind(model), seen, wrapped.as_subclass(torch.Tensor), list(Told.calls), doubled, _scripted(data)


def mutating_hooks() -> Any:
    """Hooks that change values and record their calls: on modules, tensors, nodes and accumulated gradients."""
    log: list[Any] = []
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Hardswish(), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda _, __, out: out.clone().mul_(1.1))
    model[2].register_forward_pre_hook(lambda _, given: (given[0].clone().add_(0.1),))
    model[2].register_full_backward_pre_hook(lambda _, given: (given[0] * 2,))
    model[4].register_full_backward_hook(lambda _, given, __: (given[0] * 0.5,))
    model[0].weight.register_hook(lambda gradient: gradient.clone().clamp_(-0.1, 0.1))

    def tripled(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        log.append(parameter.grad.norm().item())
        parameter.grad.mul_(3)

    model[4].weight.register_post_accumulate_grad_hook(tripled)
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, *_: log.append(type(module).__name__))
    try:
        x = torch.randn(5, 3, requires_grad=True)
        y = model(x)
        y.grad_fn.register_prehook(lambda gradients: log.append(gradients[0].sum().item()))
        torch.autograd.graph.register_multi_grad_hook(
            [model[0].weight, model[4].bias], lambda found: log.append([each is not None for each in found])
        )
        y.sum().backward()
    finally:
        everywhere.remove()
    return y, x.grad, left_behind(model), log


def nested_derivatives() -> Any:
    """Forward mode, reverse mode and vmap nested in one another, for products and normalisations."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).prod() + functional.layer_norm(x, (3,)).square().sum() + torch.linalg.norm(x)

    def moved(row: torch.Tensor, way: torch.Tensor) -> Any:
        return jvp(lambda each: each.cumprod(0).sum(), (row,), (way,))

    x = torch.randn(4, 3)
    return {
        "jvp of grad": jvp(grad(loss), (x,), (x.cos(),)),
        "hessian": hessian(loss)(x),
        "vmap of jvp": vmap(moved)(x, x.sin()),
        "jacobians": (jacfwd(jacrev(loss))(x), jacrev(jacfwd(loss))(x), jacfwd(jacfwd(loss))(x)),
        "vmap of hessian": vmap(hessian(torch.prod))(x),
        "linearized": linearize(loss, x)[1](x),
    }


def nested_tensors() -> Any:
    """Nested tensors of ragged rows through a linear layer and attention, and backward."""
    rows = [torch.randn(n, 8) for n in (2, 5, 3)]
    answers: list[Any] = []
    for layout in (torch.jagged, torch.strided):
        layer = nn.Linear(8, 8)
        nested = torch.nested.nested_tensor(rows, layout=layout, requires_grad=True)
        out = layer(nested)
        if layout is torch.jagged:
            heads = out.unflatten(-1, [2, 4]).transpose(1, 2)
            out = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
        padded = torch.nested.to_padded_tensor(out, 0.0)
        padded.square().sum().backward()
        answers += [padded, layer.weight.grad]
    return answers


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


def optimizers() -> Any:
    """Every optimizer of PyTorch, with the for-loop and foreach implementations, including LBFGS with a closure."""
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


def parametrisations() -> Any:
    """Computed weights: spectral and weight norm, orthogonal, pruned; and a lazy module."""
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 6)),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="householder"),
        nn.LazyLinear(3),
    )
    data = torch.randn(5, 4)
    model(data)
    prune.random_unstructured(model[3], "weight", amount=0.4)
    return trained(model.train(), lambda: model(data).square().mean())


def quantised() -> Any:
    """Quantisation in PyTorch: dynamic, and fake-quantised tensors with learned scales."""
    data = torch.randn(4, 8)
    model = nn.Sequential(
        nn.Linear(8, 8), FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255), nn.Linear(8, 2)
    )
    learned = trained(model, lambda: model(data).square().mean())
    small = quantize_dynamic(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), {nn.Linear}, torch.qint8
    )
    whole = torch.quantize_per_tensor(data, 0.1, 3, torch.qint8)
    channels = torch.quantize_per_channel(data, torch.rand(4) + 0.1, torch.zeros(4), 0, torch.quint8)
    return learned, small(data), whole.dequantize(), whole.int_repr(), channels.dequantize()


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


def recurrent() -> Any:
    """Recurrent networks over packed sequences, cells called one by one, projections, truncated backpropagation through time."""
    model = Tagger().train()
    tokens = pad_sequence([torch.randint(1, 20, (n,)) for n in (3, 6, 4)], batch_first=True)
    lengths = torch.tensor([3, 6, 4])
    return trained(model, lambda: model(tokens, lengths).square().mean())


def refused_calls() -> Any:
    """Calls that PyTorch refuses are refused with the same message, and the program continues."""
    x = torch.randn(3, 4)
    calls: list[Callable[[], Any]] = [
        lambda: x @ x,
        lambda: x.view(5),
        lambda: torch.linalg.inv(torch.zeros(2, 2)),
        lambda: torch.linalg.cholesky(-torch.eye(2)),
        lambda: functional.embedding(torch.tensor([9]), torch.ones(2, 2)),
        lambda: x.clone().requires_grad_().add_(1).sum().backward(),
        lambda: torch.cat([x, torch.ones(2, 2)]),
        lambda: functional.cross_entropy(x, torch.tensor([9, 0, 0])),
        lambda: torch.ones(2, requires_grad=True).backward(),
        lambda: torch._foreach_add([x], [x, x]),
        lambda: torch.multinomial(-torch.ones(3), 1),
        lambda: torch.linalg.eigvalsh(x),
        lambda: functional.layer_norm(x, (3,)),
    ]
    return [_told(call) for call in calls], x, torch.rand(2)


def _told(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, state: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        hidden = self.body(state).tanh()
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


def reinforcement() -> Any:
    """Actor and critic share a body; actions are sampled, returns discounted, and a target network is updated softly."""
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


def scaled_gradients() -> Any:
    """A gradient scaler that skips a step, and autocast to float16."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(3, 4)).float().square().mean() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss)
    return losses, scaler.get_scale(), left_behind(model)


def sparse_tensors() -> Any:
    """Sparse tensors in COO and CSR format, sparse gradients of an embedding, SparseAdam."""
    words = nn.EmbeddingBag(12, 4, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(words.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        words(torch.randint(12, (3, 4))).square().sum().backward()
        gradient = words.weight.grad
        optimizer.step()
    places = torch.tensor([[0, 1, 1], [2, 0, 2]])
    coordinates = torch.sparse_coo_tensor(places, torch.randn(3), (2, 3)).coalesce().requires_grad_()
    dense = torch.randn(3, 4, requires_grad=True)
    product = torch.sparse.mm(coordinates, dense)
    product.square().sum().backward()
    rows = torch.randn(3, 4).relu().to_sparse_csr()
    return (
        left_behind(words),
        gradient,
        product,
        coordinates.grad,
        dense.grad,
        rows @ torch.randn(4, 2),
        coordinates + coordinates,
    )


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 5, dtype=torch.cfloat) * 0.3)
        self.mix = nn.Conv1d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.einsum("bif,iof->bof", torch.fft.rfft(x)[..., :5], self.weight)
        return torch.fft.irfft(spectrum, n=x.shape[-1]) + self.mix(x)


def spectral() -> Any:
    """Complex numbers: Fourier layers, short-time transforms, linear algebra with gradients."""
    model, signals = Spectral(), torch.randn(2, 3, 16)
    learned = trained(model, lambda: model(signals).square().mean())
    matrix = torch.randn(4, 4, requires_grad=True)
    positive = matrix @ matrix.T + torch.eye(4)
    total = (
        torch.linalg.slogdet(positive)[1] + torch.linalg.svdvals(matrix).sum() + torch.linalg.eigh(positive)[0].prod()
    )
    total = total + torch.linalg.solve(positive, matrix).sum() + torch.linalg.qr(matrix)[1].diagonal().abs().sum()
    total.backward()
    window = torch.hann_window(8)
    heard = torch.stft(signals[0], 8, window=window, return_complex=True)
    return learned, total, matrix.grad, heard.abs(), torch.istft(heard, 8, window=window)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.InstanceNorm2d(4, affine=True), nn.ELU(), nn.Flatten(), nn.Linear(64, 6)
        )
        self.decode = nn.Sequential(nn.Linear(3, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 1, 4, 2, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encode(images).chunk(2, 1)
        hidden = Independent(Normal(mean, functional.softplus(spread) + 1e-3), 1)
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        drawn = self.decode(hidden.rsample())
        return functional.mse_loss(drawn, images) + 0.1 * kl_divergence(hidden, prior).mean()


def variational() -> Any:
    """A variational autoencoder with transposed convolutions, reparameterised samples and a KL divergence."""
    model, images = Autoencoder().train(), torch.randn(2, 1, 8, 8)
    return trained(model, lambda: model(images))
