"""Every value of a full dump is the one that a plain dispatch mode sees, element for element.

The reference is a mode of a few lines, in a separate run. It is independent of opdump, and clones the inputs of an operator before it runs,
and what it returned or wrote afterwards. Operators are matched by their order and their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import opdump
from opdump.catalog.catalog import Execution
from tests.torch.test_completeness import NO_KERNEL

_Seen = tuple[str, list[npt.NDArray[Any]], list[npt.NDArray[Any]]]
PROFILER = {"_record_function_enter_new", "_record_function_exit"}
WITHOUT_A_KERNEL = NO_KERNEL | PROFILER | {"is_pinned", "view_as_real", "view_as_complex"}
NO_ELEMENTS = ("empty", "uninitialised", "allocation", "no storage")


def host(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers that a tensor represents now."""
    with torch._C._DisableTorchDispatch():
        dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
        dense = dense.resolve_conj().resolve_neg()
        return np.array((dense.float() if dense.dtype is torch.bfloat16 else dense).numpy(), order="C", copy=True)


@dataclass
class _PlainMode(TorchDispatchMode):
    seen: list[_Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func._schema.name.partition("::")[2]
        inputs = [] if name in WITHOUT_A_KERNEL else [host(tensor) for tensor in given]
        result = func(*args, **kwargs)
        if name not in WITHOUT_A_KERNEL:
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.seen.append((name, inputs, [host(tensor) for tensor in outputs]))
        return result


def trained(model: nn.Module, data: Tensor, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    updates = optimizer(model.parameters(), lr=0.1)
    for _ in range(2):
        updates.zero_grad()
        model(data).float().square().mean().backward()
        updates.step()


def convolutions() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.25))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 5))
    trained(model, torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), torch.optim.Adam)


def attention() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    trained(nn.Sequential(layer, nn.LayerNorm(8)), torch.randn(2, 5, 8), torch.optim.AdamW)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 6, num_layers=2, bidirectional=True)
        self.embedding = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.cell(self.embedding(x))[0]
        return outputs


def recurrent() -> None:
    trained(Recurrent(), torch.randint(0, 7, (3, 2)), partial(torch.optim.SGD, momentum=0.9))


def sparse() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    matrix = torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.randn(3), (2, 4), check_invariants=True
    )
    (torch.sparse.mm(matrix, weight) * 2).sum().backward()
    (matrix @ torch.randn(4, 2)).exp()


def complex_numbers() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    spectrum = torch.fft.rfft(x)
    (spectrum * spectrum.conj()).real.sum().backward()
    (torch.randn(3, 3, dtype=torch.complex64).conj().T @ torch.randn(3, 3, dtype=torch.complex64)).imag.neg().exp()


def autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    with torch.autocast("cpu", torch.bfloat16):
        trained(model, torch.randn(5, 4), torch.optim.SGD)


def views_in_place() -> None:
    base = torch.randn(4, 6)
    base[1:3, ::2].mul_(3)
    base.T[2].copy_(torch.arange(4.0))
    base.diagonal().fill_(float("nan"))
    base.view(-1)[::5].clamp_(min=0)
    base[base > 1] = -1
    base.unfold(1, 2, 2).exp_()
    torch.add(base[0], base[1], out=base[2])
    torch._foreach_add_([base[0], base[3, :2]], 1.0)
    base.transpose(0, 1).sort(dim=1)
    base.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 6)).nan_to_num_()
    torch.randn(3).expand(2, 3).add(base[:2, :3])


PROGRAMS = (convolutions, attention, recurrent, sparse, complex_numbers, autocast, views_in_place)


def filed(execution: Execution) -> Iterator[list[npt.NDArray[Any] | None]]:
    """The values of the inputs, then of the outputs; None if the dump has none."""
    for side in (execution.inputs, execution.outputs):
        elements: list[npt.NDArray[Any] | None] = []
        for tensor in side.values():
            assert tensor.skip in ("", *NO_ELEMENTS), (execution.op.op_type, tensor.skip)
            elements.append(None if tensor.payload is None else np.asarray(tensor.payload.to_host()))
        yield elements


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_value_of_a_dump_is_what_a_plain_mode_sees(
    program: Callable[[], None], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    torch.manual_seed(0)
    with _PlainMode() as reference:
        program()
    torch.manual_seed(0)
    with opdump.capture(path=tmp_path, saved_data="full"):
        program()
    executions = [
        each
        for each in opdump.open(tmp_path).executions(include_skipped=True)
        if not each.op.skip and each.op.op_type != "Parameter"
    ]
    assert [each.op.op_type for each in executions] == [name for name, _, _ in reference.seen]
    compared = without = 0
    for execution, (name, *sides) in zip(executions, reference.seen, strict=True):
        for found, expected in zip(filed(execution), sides, strict=True):
            assert len(found) >= len(expected), name  # more: tensors that an operator writes but does not return
            for one, other in zip(found, expected, strict=False):
                if one is None:
                    without += 1
                    continue
                assert (one.shape, one.tobytes()) == (other.shape, other.astype(one.dtype).tobytes()), name
                compared += 1
    record_property("compared", compared)
    print(f"{program.__name__}: {len(executions)} operators, {compared} tensors compared, {without} without elements")
    assert compared > 20
    assert without <= compared // 10
