"""Programs whose steps repeat, or nearly repeat: those that `opdump.adapters.torch.following` follows, and those that it must not mistake for a repetition."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 9
_CONSTANTS = [torch.full((4,), number) for number in (0.5, 1.5, 2.5)]


def _net(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *extra, nn.Linear(8, 4))


def _train(
    net: nn.Sequential,
    optimizer: torch.optim.Optimizer,
    *,
    size: Callable[[int], int] = lambda step: 5,
    before: Callable[[int, nn.Sequential], object] = lambda step, net: None,
    loss_of: Callable[[torch.Tensor, int], torch.Tensor] = lambda out, step: out.square().mean(),
    after: Callable[[int], object] = lambda step: None,
) -> list[torch.Tensor]:
    losses = []
    for step in range(STEPS):
        before(step, net)
        optimizer.zero_grad()
        loss = loss_of(net(torch.randn(size(step), 6)), step)
        loss.backward()
        optimizer.step()
        after(step)
        losses.append(loss.detach())
    return losses


def plain() -> Any:
    net = _net()
    return _train(net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)), list(net.parameters())


def adam() -> Any:
    net = _net(nn.BatchNorm1d(8), nn.Dropout(0.3))
    return _train(net, torch.optim.Adam(net.parameters(), 0.01)), net.state_dict()


def foreach_adamw() -> Any:
    net = _net(nn.LayerNorm(8))
    return _train(net, torch.optim.AdamW(net.parameters(), 0.01, foreach=True)), net.state_dict()


def scheduled() -> Any:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return _train(net, optimizer, after=lambda step: scheduler.step())


def changing_batches() -> Any:
    net = _net()
    return _train(net, torch.optim.SGD(net.parameters(), 0.1), size=lambda step: 5 if step % 4 else 3)


def growing_batches() -> Any:
    net = _net()
    return _train(net, torch.optim.SGD(net.parameters(), 0.1), size=lambda step: 2 + step)


def branches() -> Any:
    """In some steps, the program takes a different path at its beginning, middle and end."""
    net = _net()

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        loss = out.square().mean()
        if step in (4, 6):
            loss = loss + out.abs().sum() * 0.01
        return loss

    def before(step: int, net: nn.Sequential) -> None:
        if step == 7:
            torch.ones(3).cumsum(0)

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), before=before, loss_of=loss_of)


def arguments_that_look_alike() -> Any:
    """1, 1.0 and True are equal but are different arguments, as are 0.0 and -0.0; one NaN is the same argument as another."""
    scales = [1.0, 1.0, 1.0, 1, True, float("nan"), float("nan"), 0.0, -0.0]
    assert len(scales) == STEPS
    net = _net()
    return _train(
        net,
        torch.optim.SGD(net.parameters(), 0.0),
        loss_of=lambda out, step: (out * 1).sum() + 0 * torch.ones(2).mul(scales[step]).nan_to_num().sum(),
    )


def changing_arguments() -> Any:
    """Numbers, lists, None and other kinds of arguments that change, next to operators that fail or whose result depends on them."""
    net, found = _net(), []
    generators = [torch.Generator().manual_seed(step) for step in range(STEPS)]

    def before(step: int, net: nn.Sequential) -> None:
        values = torch.arange(12.0).reshape(3, 4)
        found.append(values.roll([step % 3, 1], [0, 1]))
        found.append(values.clamp(min=None if step == 6 else step, max=2.0 * step))
        found.append(values.sum(dim=step % 2 if step > 5 else 1))
        found.append(values.add(1, alpha=step) / (1 + step))
        found.append(torch.rand(2, generator=generators[step] if step > 4 else None))
        found.append(torch.cumsum(values, 1, dtype=torch.float64 if step == 7 else None))
        try:
            values.sum(dim=step if step == 7 else 0)
        except IndexError as error:
            found.append(torch.tensor(len(str(error))))

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), before=before), found


def outputs_of_any_size() -> Any:
    net = _net()
    return _train(net, torch.optim.SGD(net.parameters(), 0.1), loss_of=lambda out, step: out[out > 0.1].sum())


def failures() -> Any:
    """Operators that fail in some steps; the program catches the errors."""
    net = _net()
    failed = []

    def before(step: int, net: nn.Sequential) -> None:
        try:
            torch.ones(2, 3).mm(torch.ones(3 if step != 5 else 4, 2))
        except RuntimeError as error:
            failed.append(str(error))

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), before=before), failed


def two_optimizers() -> Any:
    torch.manual_seed(3)
    maker, judge = nn.Linear(3, 6), _net()
    of_maker, of_judge = torch.optim.Adam(maker.parameters(), 0.01), torch.optim.SGD(judge.parameters(), 0.01)
    losses = []
    for _ in range(STEPS):
        made = maker(torch.randn(4, 3))
        of_judge.zero_grad()
        loss = judge(made.detach()).mean() - judge(torch.randn(4, 6)).mean()
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        other = -judge(made).mean()
        other.backward()
        of_maker.step()
        losses += [loss.detach(), other.detach()]
    return losses


def accumulation() -> Any:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            loss = net(torch.randn(4, 6)).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return losses


def train_and_evaluate() -> Any:
    net = _net(nn.Dropout(0.5))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for step in range(STEPS):
        net.train()
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            losses += [loss.detach(), net(torch.randn(2, 6)).sum()]
        if step % 3 == 2:
            with torch.inference_mode():
                losses.append(net(torch.randn(2, 6)).sum().clone())
    return losses


def inference() -> Any:
    net = _net().eval()
    with torch.no_grad():
        return [net(torch.randn(4, 6)) for _ in range(STEPS)]


def checkpoints() -> Any:
    net = _net()
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    optimizer = torch.optim.SGD([*net.parameters(), *inner.parameters()], 0.1)
    return _train(net, optimizer, loss_of=lambda out, step: checkpoint(inner, out, use_reentrant=False).square().mean())


def double_backward() -> Any:
    net = _net()

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        x = torch.randn(3, 6, requires_grad=True)
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        loss: torch.Tensor = out.square().mean() + gradient.square().sum()
        return loss

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), loss_of=loss_of)


def hooks() -> Any:
    net = _net()
    seen = []
    net[0].register_forward_hook(lambda module, args, out: out * 1.5)
    last = net[2]
    assert isinstance(last, nn.Linear)
    last.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))

    def note(module: nn.Module, given: Any, out: Any) -> None:
        seen.append(out[0].sum().detach())

    last.register_full_backward_hook(note)
    return _train(net, torch.optim.SGD(net.parameters(), 0.1)), seen


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        result: torch.Tensor = gradient * 2 + x * 0
        return result


def own_function() -> Any:
    net = _net()
    twice: Any = _Twice.apply
    return _train(
        net,
        torch.optim.SGD(net.parameters(), 0.1),
        loss_of=lambda out, step: twice(out).square().mean(),
    )


def views() -> Any:
    """Writes into parts of memory, through views, and into memory shared with numpy."""
    net = _net()
    table = torch.zeros(4, 8)
    shared = torch.zeros(3)
    array = shared.numpy()

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        gates = out * 2
        a, b = gates[:, :2], gates[:, 2:]
        a.mul_(2)
        b.add_(1)
        table[step % 4].add_(1)
        table.t()[0].mul_(2)
        array[0] = step
        return gates.square().mean() + table.sum() * 0 + shared.sum() * 0

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), loss_of=loss_of), table


def another_thread() -> Any:
    """In some steps, another thread runs operators between those of the training thread."""
    net = _net()

    def before(step: int, net: nn.Sequential) -> None:
        if step in (5, 6):
            thread = threading.Thread(target=lambda: torch.ones(3).mul(2).sum())
            thread.start()
            thread.join()

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), before=before)


def swapped_memory() -> Any:
    """Parameters, buffers and gradients whose memory changes between steps."""
    net = _net(nn.BatchNorm1d(8))

    def before(step: int, net: nn.Sequential) -> None:
        first = net[0]
        assert isinstance(first, nn.Linear)
        weight = first.weight
        if step == 4:
            weight.data = weight.data.clone()
        if step == 5:
            weight.data = torch.cat([weight.data, weight.data])[:8]
        if step == 6:
            first.weight = nn.Parameter(weight.detach() * 0.5)

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), before=before), net.state_dict()


def changing_constants() -> Any:
    """Tensors from before the capture; some steps read a different one, instead of the usual one or in addition."""
    net = _net()

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        first, second = (_CONSTANTS[0], _CONSTANTS[1 if step in (5, 7) else 0])
        return (out * first + second).square().mean() + (out + _CONSTANTS[2 if step > 6 else 1]).mean()

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), loss_of=loss_of)


def many_kinds() -> Any:
    """Integers, bools, complex numbers, narrow types, empty tensors, scalars, lists, indices."""
    net = _net()
    embedding = nn.Embedding(5, 6, sparse=True)
    optimizer = torch.optim.SGD([*net.parameters(), *embedding.parameters()], 0.1)

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        index = torch.arange(4) % 5
        mask = index > 1
        half = out.to(torch.bfloat16).float()
        wave = torch.fft.rfft(out.detach()).abs()
        nothing = torch.zeros(0, 3).sum()
        pair = torch.stack([out, half]).unbind(0)
        chosen = net(embedding(index)).masked_fill(mask[:, None], 0.0)
        loss: torch.Tensor = pair[0].mean() + pair[1].mean() + wave.mean() * 0 + nothing + chosen.square().mean()
        return loss

    return _train(net, optimizer, loss_of=loss_of), embedding.weight


def collectives() -> Any:
    """A collective that runs while other operators run, and whose tensor is written before the program waited for it."""
    net = _net()
    place = tempfile.TemporaryDirectory()
    dist.init_process_group("gloo", init_method=f"file://{place.name}/store", rank=0, world_size=1)

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        sums = out.detach().clone()
        work = dist.all_reduce(sums, async_op=True)
        while not work.is_completed():
            pass
        other = (out * 2).sum(0)
        sums.mul_(3)
        work.wait()
        return out.square().mean() + (other + sums.sum()).mean() * 0

    try:
        return _train(net, torch.optim.SGD(net.parameters(), 0.1), loss_of=loss_of)
    finally:
        dist.destroy_process_group()
        place.cleanup()


def attention() -> Any:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(layer(torch.randn(2, 5, 8)).mean(1), torch.tensor([1, 2]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def closures() -> Any:
    net = _net()
    optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)
    data = torch.randn(5, 6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(data).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).detach() for _ in range(STEPS)]


def mixed_precision() -> Any:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(torch.randn(4, 6)).float().square().mean()
        scaler.scale(loss * (float("inf") if step == 5 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return losses


def function_mode() -> Any:
    net = _net()
    with torch.device("cpu"):
        return _train(net, torch.optim.SGD(net.parameters(), 0.1))


def transforms() -> Any:
    net = _net()

    def loss_of(out: torch.Tensor, step: int) -> torch.Tensor:
        rows = torch.vmap(lambda row: (row * row).sum())(out)
        loss: torch.Tensor = rows.mean() + torch.func.grad(lambda x: (x**3).sum())(out.detach()).mean() * 0
        return loss

    return _train(net, torch.optim.SGD(net.parameters(), 0.1), loss_of=loss_of)


def large_tensors() -> Any:
    """Tensors that are not read again unless something writes into them."""
    net = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        out = net(torch.randn(256, 512)).relu().clone()
        out[0, 0] = step
        loss = (out * out).mean() + out.mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


PROGRAMS: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
        *(
            plain,
            adam,
            foreach_adamw,
            scheduled,
            changing_batches,
            growing_batches,
            branches,
            arguments_that_look_alike,
            changing_arguments,
        ),
        *(outputs_of_any_size, failures, two_optimizers, accumulation, train_and_evaluate, inference, checkpoints),
        *(
            double_backward,
            hooks,
            own_function,
            views,
            another_thread,
            swapped_memory,
            many_kinds,
            changing_constants,
            collectives,
            attention,
            closures,
        ),
        *(mixed_precision, function_mode, transforms, large_tensors),
    )
}
FOLLOWED = frozenset(
    {
        *("plain", "adam", "foreach_adamw", "scheduled", "two_optimizers", "accumulation", "inference", "attention"),
        *(
            "changing_arguments",
            "hooks",
            "large_tensors",
            "function_mode",
            "failures",
            "branches",
            "changing_batches",
            "mixed_precision",
        ),
    }
)
"""Programs most of whose later steps are followed."""
