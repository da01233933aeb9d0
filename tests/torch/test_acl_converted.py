"""What a PyTorch program leaves under an acl.json, converted by `msaccucmp convert`, is what PyTorch computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import opdump
from opdump.adapters.torch.schemas import schema_of
from opdump.msaccucmp.command_line import run as msaccucmp
from opdump.plan import DumpPlan
from tests.torch.programs import PROGRAMS

_Array = npt.NDArray[Any]


class _Computed(TorchDispatchMode):
    """Copies what every operator with a kernel reads and writes; knows nothing of the recorder."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, dict[str, list[_Array]]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = _copies((args, kwargs))
        result = func(*args, **kwargs)
        if not schema_of(func).kind:
            written = result if func._schema.returns else _written(func, args)
            self.operators.append((str(func), {"input": read, "output": _copies(written)}))
        return result


def _written(func: Any, args: tuple[Any, ...]) -> list[Any]:
    described = zip(func._schema.arguments, args, strict=False)
    return [value for argument, value in described if argument.alias_info is not None and argument.alias_info.is_write]


def _copies(values: Any) -> list[_Array]:
    tensors = [leaf.detach() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [(each.float() if each.dtype is torch.bfloat16 else each.clone()).numpy() for each in tensors]


def _low_precision() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = model(torch.ones(2, 5, dtype=torch.bfloat16)).half().exp().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("program", [*PROGRAMS.values(), _low_precision], ids=[*PROGRAMS, "low precision"])
def test_every_file_converts_to_what_was_computed(program: Callable[[], Any], tmp_path: Path) -> None:
    with _Computed() as computed:
        program()
    plan = DumpPlan(
        path=tmp_path / "dump",
        layout="acl",
        dialect="acl",
        file_format="bin",
        dump_level="kernel",
        single_operators=True,
    )
    with opdump.capture(plan) as dump:
        program()
    assert dump.report is not None
    (home,) = tmp_path.glob("dump/*/0")
    files = sorted((file for file in home.iterdir() if file.is_file()), key=lambda file: int(file.suffix[1:]))
    arrays = {}
    (tmp_path / "npy").mkdir()
    assert msaccucmp(["convert", "-d", str(home), "-out", str(tmp_path / "npy")]) == 0
    for file in (tmp_path / "npy").glob("*.npy"):
        arrays[file.name] = np.load(file)
    print(len(files), len(arrays), len(computed.operators), dump.report)
    raise AssertionError
