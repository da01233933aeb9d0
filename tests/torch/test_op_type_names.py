"""Every name that the table of operator names assigns to PyTorch exists in PyTorch."""

from __future__ import annotations

import torch

from opdump.op_types import ROWS
from tests.torch.releases import RELEASE

# Registered by torch.distributed and torchvision, which may be missing.
ELSEWHERE = {
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "_allgather_base",
    "allgather",
    "allreduce",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "deform_conv2d",
    "_reduce_scatter_base",
    "reduce_scatter",
    "reduce_scatter_tensor",
}
# Removed in PyTorch 2.14 or 2.15.
GONE = {"cholesky", "qr"}

# Missing in PyTorch 2.6; all exist in 2.10.
YOUNG = {"_fused_rms_norm", "_fused_rms_norm_backward", "_grouped_mm", "_scaled_grouped_mm"}


def test_every_torch_name_is_an_operator_of_aten() -> None:
    schemas = torch._C._jit_get_all_schemas()
    known = {schema.name.removeprefix("aten::") for schema in schemas if schema.name.startswith("aten::")}
    named = {name for row in ROWS for name in row.torch} - ELSEWHERE - GONE - (YOUNG if RELEASE < (2, 10) else set())
    assert sorted(name for name in named if name not in known and f"{name}_" not in known) == []
