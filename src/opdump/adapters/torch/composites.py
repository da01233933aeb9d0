"""Runs operators whose values a dispatch mode would change outside the mode, each as one operator.

In some places PyTorch checks whether a dispatch mode is on, and then takes a code path for tracing. Usually both paths produce the
same bits. For the operators in the tables below they do not, for one of four reasons:

* a composite runs another kernel: `linalg.svdvals` also computes the vectors, `matmul` of a batch with one matrix folds the batch;
* PyTorch calls a dispatch mode with autocast and the conjugate bit switched off, so an operator that calls others in its kernel
  computes in another precision (`bilinear`) or, for complex numbers, returns a wrong result (`linalg.pinv`);
* operators of other libraries may do the same: what their kernels call is unknown;
* the formula of a gradient (`prod`, `cumprod`), or of a tangent in forward mode (`layer_norm`), takes another path.

They are intercepted above autograd, which a dispatch mode cannot do. A thread with a dispatch mode has the dispatch key
`PythonTLSSnapshot` set, the first key of every operator. A kernel registered there for one operator is called only for that operator,
however it was called (by the program, by another operator in C++, by a gradient formula) and wherever it was imported from. It is never
called in a thread without a dispatch mode, so other operators, and steps that are not dumped, cost nothing.

In inference mode, composites reach a dispatch mode undecomposed, and all of them run with autocast and the conjugate bit off. So at the
mode's key (`Python`) composites are registered as fallthrough, and decompose as they do everywhere else.

For a gradient, the same kernel adds two hooks to the autograd node of the result. The first excludes the mode for the rest of the node;
autograd restores that state after each node, even if the node fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch

from opdump.adapters.torch.dispatch import CaptureMode
from opdump.adapters.torch.isolation import hidden_from_torch_modes
from opdump.adapters.torch.mode_stack import suspended
from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import (
    KEY_OF_COUNTS,
    KEY_OF_MODES,
    KEY_OF_THREADS_WITH_MODES,
    OPERATORS,
    SAVED,
    all_operators,
    autograd_node,
    base_of,
    destroy_library,
    dispatch_depth,
    dispatch_mode_at,
    dual_level,
    exclude_key,
    fallthrough_kernel,
    has_kernel,
    is_key_excluded,
    is_subclass_like,
    named_schema,
    saved_tensor_hooks,
)
from opdump.adapters.torch.schemas import kind_of

# The operators that a dispatch mode changes, and why.

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


# Continues an operator, intercepted at the dispatch key of threads with modes (`PythonTLSSnapshot`), below that key.
#
# PyTorch's own kernel at that key saves the thread's dispatch state for a dispatch mode further below. Before PyTorch 2.13
# the mode cannot be called without it, but a kernel that opdump registers for an operator at that key replaces it. So in
# these releases opdump first calls an operator of its own, which passes PyTorch's kernel, and continues from inside it. That
# operator is in the namespace `prims`, because only inside operators of that namespace are numbers accepted for tensors
# (`prims::mul(x, -1)`), which some intercepted operators rely on.

_NAMESPACE = "prims"
_NAME = "opdump_entry"
NEEDS_ENTRY = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


class Redispatch:
    """Continues intercepted operators, from `attach` to `detach`."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._libraries: list[torch.library.Library] = []

    def attach(self) -> None:
        if NEEDS_ENTRY and not self._libraries:
            library = torch.library.Library(_NAMESPACE, "FRAGMENT")
            self._libraries.append(library)
            library.define(f"{_NAME}() -> ()")
            library.impl(_NAME, self._enter, "CompositeImplicitAutograd")
            library.impl(_NAME, fallthrough_kernel, "Python")

    def detach(self) -> None:
        while self._libraries:
            destroy_library(self._libraries.pop())

    def onward(self, operator: Any, keyset: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the operator below the key of threads with modes."""
        rest = keyset.remove(KEY_OF_THREADS_WITH_MODES)
        if not self._libraries:
            return operator.redispatch(rest, *args, **kwargs)
        results: list[Any] = []
        # `opdump_entry` takes no arguments and returns nothing, so the call and its result pass through the thread.
        self._local.call = lambda: results.append(operator.redispatch(rest, *args, **kwargs))
        torch.ops.prims.opdump_entry()
        return results[0]

    def _enter(self) -> None:
        call = self._local.call
        self._local.call = None
        call()


# Runs the operators of these tables outside the mode.

_KEY = "PythonTLSSnapshot"
_KeySet = Any  # torch._C.DispatchKeySet


class ExactOperators:
    """Keeps the operators of the tables exact while `mode` is on, from `attach` to `detach`.

    For these operators, the mode's `run_operator` and `run_as_one` are called in place of `__torch_dispatch__`, with the mode off, in the
    thread that runs the operator. This happens only if it is the thread's only dispatch mode. If another mode is on, the program itself
    runs under a mode, and there is nothing to preserve.
    """

    def __init__(self, mode: CaptureMode) -> None:
        self._mode = mode
        self._libraries: list[torch.library.Library] = []
        self._adopted: set[str] = set()
        self._redispatch = Redispatch()

    def attach(self) -> None:
        """Start. Operators of the tables that this release of PyTorch lacks are skipped."""
        if is_lost(OPERATORS):
            return
        self._redispatch.attach()
        self._register(ONE_OPERATOR, self._one_operator)
        for namespace, names in counted_inside().items():
            self._register(names, self._one_operator, namespace)
        self._register(GRADIENTS, self._exact_gradient)
        inside = counted_inside().get("aten", ())
        self._register((name for name in TANGENTS if name not in GRADIENTS and name not in inside), self._exact_tangent)
        self._register(("matmul",), self._matmul)
        self._register(("max_pool1d",), self._max_pool1d)
        self._register(("linear",), self._linear)
        library = self._library("aten")
        for name in composites():
            library.impl(name, fallthrough_kernel, "Python")
        self.adopt()

    def adopt(self) -> None:
        """Register operators that other libraries have defined since; takes about a millisecond."""
        if is_lost(OPERATORS):
            return
        new = [name for name in all_operators() if name not in self._adopted]
        self._adopted.update(new)
        for name in new:
            namespace, _, rest = name.partition("::")
            if namespace not in OWN_NAMESPACES and not has_kernel(name, COMPOSITE):
                self._register((rest,), self._one_operator, namespace)

    def detach(self) -> None:
        """Stop. Hooks on autograd nodes that are still alive do nothing from now on."""
        while self._libraries:
            destroy_library(self._libraries.pop())
        self._redispatch.detach()
        self._adopted.clear()

    def _register(
        self, names: Iterable[str], make: Callable[[Operator], Callable[..., Any]], namespace: str = "aten"
    ) -> None:
        library = self._library(namespace)
        for name in names:
            operator = find(namespace, name)
            if operator is not None:
                library.impl(name, make(operator), _KEY, with_keyset=True)

    def _library(self, namespace: str) -> torch.library.Library:
        library = torch.library.Library(namespace, "IMPL")
        self._libraries.append(library)
        return library

    def _is_on(self) -> bool:
        """Whether the mode is the only dispatch mode of this thread and is not excluded."""
        return dispatch_depth() == 1 and dispatch_mode_at(0) is self._mode and not is_key_excluded(KEY_OF_MODES)

    def _one_operator(self, operator: Operator) -> Callable[..., Any]:
        composite = has_kernel(operator.name(), COMPOSITE)

        def kernel(keyset: _KeySet, *args: Any, **kwargs: Any) -> Any:
            if self._is_on():
                with suspended():
                    with hidden_from_torch_modes():
                        anyway = _dispatches_anyway((*args, *kwargs.values()), composite=composite)
                    if not anyway:
                        plain = keyset.remove(KEY_OF_THREADS_WITH_MODES).remove(KEY_OF_MODES)
                        if not self._mode.recording:
                            return operator.redispatch(plain, *args, **kwargs)
                        return self._mode.run_operator(
                            operator, lambda: operator.redispatch(plain, *args, **kwargs), args, kwargs
                        )
            return self._redispatch.onward(operator, keyset, args, kwargs)

        return kernel

    def _matmul(self, operator: Operator) -> Callable[..., Any]:
        exact = self._one_operator(operator)

        def kernel(keyset: _KeySet, left: torch.Tensor, right: torch.Tensor) -> Any:
            # Every matmul comes here. Only these shapes fold under a mode but not without one.
            with hidden_from_torch_modes():
                folds = right.dim() == 3 and left.dim() == 3 and right.size(0) == 1 and not right.requires_grad
            if folds:
                return exact(keyset, left, right)
            return self._redispatch.onward(operator, keyset, (left, right), {})

        return kernel

    def _linear(self, operator: Operator) -> Callable[..., Any]:
        exact = self._one_operator(operator)

        def kernel(keyset: _KeySet, x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # `linear` folds a non-contiguous batch if the weight requires a gradient. Under a mode in inference mode, it runs below
            # autograd, where its view of the weight requires none.
            with hidden_from_torch_modes():
                asks = torch.is_inference_mode_enabled() and weight.requires_grad and not x.is_contiguous()
            if asks:
                return exact(keyset, x, weight, *args, **kwargs)
            return self._redispatch.onward(operator, keyset, (x, weight, *args), kwargs)

        return kernel

    def _max_pool1d(self, operator: Operator) -> Callable[..., Any]:
        exact = self._one_operator(operator)

        def kernel(keyset: _KeySet, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Without a gradient it has its own kernel; under a mode it runs max_pool2d, whose result is a view.
            with hidden_from_torch_modes():
                differentiates = x.requires_grad and torch.is_grad_enabled()
            if not differentiates:
                return exact(keyset, x, *args, **kwargs)
            return self._redispatch.onward(operator, keyset, (x, *args), kwargs)

        return kernel

    def _exact_tangent(self, operator: Operator) -> Callable[..., Any]:
        exact = self._one_operator(operator)

        def kernel(keyset: _KeySet, *args: Any, **kwargs: Any) -> Any:
            # The kernel that makes the autograd node also computes the tangent, within the operator.
            if dual_level() >= 0:
                return exact(keyset, *args, **kwargs)
            return self._redispatch.onward(operator, keyset, args, kwargs)

        return kernel

    def _exact_gradient(self, operator: Operator) -> Callable[..., Any]:
        run = self._exact_tangent(operator) if operator.name().removeprefix("aten::") in TANGENTS else None

        def kernel(keyset: _KeySet, *args: Any, **kwargs: Any) -> Any:
            if run is None:
                result = self._redispatch.onward(operator, keyset, args, kwargs)
            else:
                result = run(keyset, *args, **kwargs)
            # All results of an operator share one node.
            first = result if isinstance(result, torch.Tensor) else result[0]
            with hidden_from_torch_modes():
                if torch.is_grad_enabled() and first.requires_grad and self._is_on():
                    self._guard(first)
            return result

        return kernel

    def _guard(self, result: torch.Tensor) -> None:
        """Make the gradient of the operator that made `result` run outside the mode."""
        node = result.grad_fn
        base = base_of(result)
        if base is not None and base.grad_fn is not None:
            node = base.grad_fn  # a write through a view: the gradient belongs to the base
        if node is None:
            return
        # Unpacking saved tensors runs the program's hooks, which may rely on being called once.
        saves_plainly = saved_tensor_hooks(True) is None
        name = _gradient_name(node)
        running = False

        def before(_: tuple[torch.Tensor | None, ...]) -> None:
            nonlocal running
            running = bool(self._libraries) and self._is_on()
            if running:
                exclude_key(KEY_OF_MODES, True)

        def after(results: tuple[torch.Tensor | None, ...], gradients: tuple[torch.Tensor | None, ...]) -> None:
            nonlocal running
            if not running:
                return
            running = False
            exclude_key(KEY_OF_MODES, False)
            current = autograd_node()  # not `node`: that would be a reference cycle
            if not self._mode.recording:
                return
            inputs: dict[str, Any] = {"grad": gradients[0]} if len(gradients) == 1 else {"grads": gradients}
            with suspended(), hidden_from_torch_modes():
                if saves_plainly and current is not None:
                    inputs.update(_saved(current))
                self._mode.run_as_one(name, lambda **_: results, (), inputs)

        node.register_prehook(before)
        node.register_hook(after)


def _gradient_name(node: torch.autograd.graph.Node) -> str:
    """The operator name of a gradient: `prod_backward` for `ProdBackward0`, whatever its number."""
    stem = node.name().rpartition("::")[2].partition("Backward")[0]
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in stem)
    return f"{words.lstrip('_')}_backward"


def _saved(node: torch.autograd.graph.Node) -> dict[str, torch.Tensor]:
    """The tensors that the forward operator saved for its gradient, by their names in the formula."""
    found = {}
    for attribute in dir(node):
        if attribute.startswith(SAVED):
            value = getattr(node, attribute)
            if isinstance(value, torch.Tensor):
                found[attribute.removeprefix(SAVED)] = value
    return found


def _dispatches_anyway(values: Iterable[Any], *, composite: bool) -> bool:
    """Whether an argument selects the tracing paths itself: a subclass, a meta tensor, one of vmap, or in composites a sparse tensor."""
    return any(
        is_subclass_like(value) and (composite or value.layout is torch.strided)
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _dispatches_anyway(value, composite=composite)
        for value in values
    )
