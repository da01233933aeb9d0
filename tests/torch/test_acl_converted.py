"""The files that a PyTorch program leaves under an acl.json, converted by `msaccucmp convert`, contain what PyTorch computed."""

from __future__ import annotations

import re
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
_FILLING = frozenset({"fill_.Scalar", "zero_.default", "uniform_.default", "normal_.default", "bernoulli_.float"})
"""They allocate memory whose values are not read, because it is uninitialised."""
_PLACE = re.compile(r"_(\d+)_L2\.")


class _Computed(TorchDispatchMode):
    """Copies what every operator with a kernel reads and writes, independently of the recorder."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own
        self.operators: list[tuple[str, dict[str, list[_Array]]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = _copies((args, kwargs))
        result = func(*args, **kwargs)
        schema = schema_of(func)
        if not schema.kind:
            written = _copies((result, [args[index] for index, _ in schema.written if index < len(args)]))
            self.operators.append((str(func), {"input": read, "output": written}))
        return result


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
    program()  # operators that a library runs on import are not part of the program
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
    assert dump.report.captured == len(computed.operators)
    (home,) = tmp_path.glob("dump/*/0")
    (tmp_path / "npy").mkdir()
    assert msaccucmp(["convert", "-d", str(home), "-out", str(tmp_path / "npy")]) == 0
    arrays = {file.name: np.load(file) for file in (tmp_path / "npy").iterdir()}
    names: dict[int, list[str]] = {}
    for file in home.iterdir():
        place = _PLACE.search(file.name)
        if place is not None:
            names.setdefault(int(place[1]), []).append(file.name)
    # An operator whose tensors are all empty leaves no file.
    operators = [one for one in computed.operators if any(array.size for side in one[1].values() for array in side)]
    assert sorted(names) == list(range(len(operators)))
    unread = set()
    for number, (operator, tensors) in enumerate(operators):
        for side, computed_arrays in tensors.items():
            for slot, expected in enumerate(computed_arrays):
                (name,) = [name for name in names[number] if f"{name}.{side}.{slot}.npy" in arrays] or [""]
                found = arrays.pop(f"{name}.{side}.{slot}.npy", None)
                if found is None:
                    unread.add((operator.removeprefix("aten."), side))
                else:
                    if expected.size:  # the original msaccucmp returns float64 for empty tensors
                        assert found.dtype == expected.dtype, (operator, side, slot)
                    assert found.reshape(expected.shape).tobytes() == expected.tobytes(), (operator, side, slot)
    assert not arrays
    assert unread <= {(name, "input") for name in _FILLING}
