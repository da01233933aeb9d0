"""A tensor is read in place, through what it says of itself; the compiled table and its twin say the same of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opdump.kernels import DTYPE_CODES, SummaryTable, reference

torch = pytest.importorskip("torch")

TABLES = list(dict.fromkeys((SummaryTable, reference.SummaryTable)))
KINDS = {
    torch.float32: (DTYPE_CODES["float32"], "float32", 4),
    torch.bfloat16: (DTYPE_CODES["bfloat16"], "bfloat16", 2),
}

READ: dict[str, Callable[[], Any]] = {
    "contiguous": lambda: torch.arange(12.0).reshape(3, 4),
    "no dimensions": lambda: torch.tensor(2.5),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "every second": lambda: torch.arange(12.0)[1::2],
    "expanded": lambda: torch.tensor([1.5]).expand(3, 2),
    "16 bits": lambda: torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
}
NOT_READ: dict[str, Callable[[], Any]] = {
    "another dtype": lambda: torch.ones(2, dtype=torch.int64),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed rows": lambda: torch.eye(3).to_sparse_csr(),
    "negated lazily": lambda: torch.tensor([1 + 2j]).conj().imag,
    "no memory": lambda: torch.empty(2, 2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", READ)
def test_what_lies_in_memory_is_read(table: type[SummaryTable], name: str) -> None:
    tensor = READ[name]()
    rows = table()
    facts = rows.add_tensor(tensor, KINDS, torch.strided)
    dtype = str(tensor.dtype).removeprefix("torch.")
    assert facts == (dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size(), 0)
    assert type(facts[1]) is tuple
    wanted = tensor.detach().double()
    assert rows.rows()[0, 0] == tensor.numel()
    assert torch.equal(torch.tensor(rows.rows()[0, 9]), wanted.sum()) or wanted.isnan().any()
    assert (rows.rows()[0, 1] == wanted.isnan().sum().item()).all()


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", NOT_READ)
def test_everything_else_is_left_to_others(table: type[SummaryTable], name: str) -> None:
    rows = table()
    assert rows.add_tensor(NOT_READ[name](), KINDS, torch.strided) is None
    assert len(rows) == 0


@pytest.mark.parametrize("table", TABLES)
def test_no_elements_need_no_row(table: type[SummaryTable]) -> None:
    rows = table()
    assert rows.add_tensor(torch.empty(0, 3), KINDS, torch.strided) == ("float32", (0, 3), 0, -1)
    assert len(rows) == 0


@pytest.mark.parametrize("table", TABLES)
def test_an_error_that_is_not_the_tensors_own_is_not_hidden(table: type[SummaryTable]) -> None:
    with pytest.raises(AttributeError):
        table().add_tensor(object(), KINDS, torch.strided)
