"""Lists the operators that a dispatch mode changes, and why. `composites` runs them outside the mode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from opdump.adapters.torch.operator_kinds import kind_of
from opdump.adapters.torch.private_names import KEY_OF_COUNTS, all_operators, has_kernel, named_schema

Operator = Any  # torch._ops.OpOverload, which is generic in some releases and not in others

ONE_OPERATOR: Mapping[str, str] = {
    "linalg_svdvals": "under a mode it also computes the singular vectors, with another LAPACK algorithm",
    "linalg_eigvalsh": "under a mode it also computes the eigenvectors, with another LAPACK algorithm",
    "linalg_eigvals": "under a mode it also computes the eigenvectors; the eigenvalues come in another order",
    "linalg_pinv.atol_rtol_tensor": "its kernel calls matmul (autocast) and reads conjugated views",
    "linalg_lstsq": "its kernel reads conjugated views",
    **dict.fromkeys(
        ("linalg_polar", "linalg_polar.out", "linalg_matrix_sqrth", "linalg_matrix_sqrth.out"),  # PyTorch 2.15
        "its kernel reads conjugated views",
    ),
    "bilinear": "its kernel calls matmul (autocast)",
    "_euclidean_dist": "its kernel calls matmul (autocast)",
    "_euclidean_dist.out": "its kernel calls matmul (autocast)",
    "_sparse_addmm": "its kernel calls addmm (autocast)",
    "_sparse_addmm.out": "its kernel calls addmm (autocast)",
    "cumprod_backward": "under a mode the formula for inputs with zeros is used for all inputs",
    "unsafe_split.Tensor": "its kernel makes views, which in inference mode are views of the input",
    "unsafe_split_with_sizes": "its kernel makes views, which in inference mode are views of the input",
    **dict.fromkeys(
        (
            *("linalg_matrix_rank.out", "linalg_matrix_rank.out_tol_tensor"),
            *("linalg_matrix_rank.atol_rtol_float_out", "linalg_matrix_rank.atol_rtol_tensor_out"),
        ),
        "under a mode nothing is written to `out`",
    ),
    **dict.fromkeys(
        (
            *("kron.out", "linalg_cond.out", "linalg_cond.p_str_out", "linalg_norm.out", "linalg_norm.ord_str_out"),
            *("linalg_matrix_norm.out", "linalg_matrix_norm.str_ord_out", "nuclear_norm.out", "nuclear_norm.dim_out"),
            *("linalg_pinv.out_rcond_tensor", "linalg_pinv.atol_rtol_tensor_out"),
            *("linalg_pinv.atol_rtol_float_out", "linalg_pinv.out", "linalg_svdvals.out", "linalg_eigvalsh.out"),
            *("linalg_eigvals.out", "quantile.out", "quantile.scalar_out", "nanquantile.out"),
            "nanquantile.scalar_out",
        ),
        "under a mode `out` is written once more or once less, or refused if a gradient is required",
    ),
}
"""Operators that always run outside the mode: their names in `aten`, with the reason."""

_MASKED = "under a mode the gradient is multiplied by a mask, so an infinite gradient makes NaN everywhere"
_FOR_ZEROS = "under a mode the formula for inputs with zeros is used for all inputs"
_SUMMED = "under a mode the gradient of the value also sums zeros"
_NOT_REFUSED = "under a mode an undefined gradient is not refused"
GRADIENTS: Mapping[str, str] = {
    **dict.fromkeys(("max", "min", "median", "nanmedian"), _MASKED),
    **dict.fromkeys(("prod", "prod.dim_int", "cumprod"), _FOR_ZEROS),
    **dict.fromkeys(("masked_fill.Tensor", "masked_fill_.Tensor"), _SUMMED),
    **dict.fromkeys(("linalg_eig", "_linalg_eigh", "_linalg_svd"), _NOT_REFUSED),
    "ormqr": "under a mode the gradient has another memory layout",
    "linalg_householder_product": "under a mode the gradient is computed by other operators",
}
"""Operators whose gradient runs outside the mode: their names in `aten`, with the reason."""

TANGENTS: Mapping[str, str] = {
    **dict.fromkeys(("prod", "prod.dim_int"), _FOR_ZEROS),
    **dict.fromkeys(
        (
            *("native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
            *("_batch_norm_with_update", "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats"),
        ),
        "under a mode the tangent is computed by other operators, in another order",
    ),
}
"""Operators that run outside the mode while forward-mode AD is on: their names in `aten`, with the reason."""

# Namespaces that PyTorch ships. Except for the operators above, no kernel in them calls an operator that autocast or the conjugate bit
# would change.
OWN_NAMESPACES = frozenset(
    {
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_quantized", "_test"),
        *("aten", "c10d", "debug_mode_ops", "export", "inductor", "mkl", "mkldnn", "mkldnn_prepacked"),
        *("onednn", "prim", "profiler", "quantization", "quantized", "sparse", "static_runtime", "streams"),
        *("symm_mem",),
    }
)

_COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::", "symm_mem::")
"""Their kernels write into their arguments, which their schemas do not always declare; those of `symm_mem` call operators that autograd
records."""
COMPOSITE = "CompositeImplicitAutograd"
# An operator with a kernel at one of these keys does not always decompose.
_KERNEL_KEYS = (
    *("Autograd", "AutogradCPU", "AutogradCUDA", "AutogradNestedTensor", "AutogradOther", "CPU", "CUDA"),
    *("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Meta", "MkldnnCPU"),
    *("NestedTensorCPU", "NestedTensorCUDA", "QuantizedCPU", "SparseCPU", "SparseCsrCPU"),
)


@cache
def composites() -> tuple[str, ...]:
    """Operators of `aten` that decompose into others for every kind of tensor."""
    has = has_kernel
    return tuple(
        name.removeprefix("aten::")
        for name in all_operators()
        if name.startswith("aten::") and has(name, COMPOSITE) and not any(has(name, key) for key in _KERNEL_KEYS)
    )


@cache
def counted_inside() -> Mapping[str, tuple[str, ...]]:
    """Operators, by namespace, whose writes are counted only inside their kernels; also all `_foreach_*` operators and collectives.

    The kernel at the key `ADInplaceOrView` increments the version counter of a written tensor. An operator that writes into an argument
    but has no kernel there leaves this to the operators that its own kernel calls; under a mode, the key is switched off for those.
    """
    found: dict[str, list[str]] = {}
    for qualified in all_operators():
        namespace, _, name = qualified.partition("::")
        if namespace in OWN_NAMESPACES and _counts_inside(qualified):
            operator = find(namespace, name)
            if operator is not None and not kind_of(operator):
                found.setdefault(namespace, []).append(name)
    return {namespace: tuple(names) for namespace, names in found.items()}


def _counts_inside(qualified: str) -> bool:
    has = has_kernel
    if qualified.startswith("aten::_foreach_"):
        return True
    if qualified.startswith(_COLLECTIVES):
        return not has(qualified, COMPOSITE)
    if has(qualified, COMPOSITE) or has(qualified, KEY_OF_COUNTS):
        return False
    packet, _, overload = qualified.partition(".")
    schema = named_schema(packet, overload)
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)


def find(namespace: str, name: str) -> Operator | None:
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload or "default", None)
