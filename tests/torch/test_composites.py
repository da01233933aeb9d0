"""Operators that a dispatch mode would change run outside it, compute the same bits, and are recorded as one operator."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import opdump
from opdump.adapters.torch import composites
from opdump.adapters.torch.composites import GRADIENTS, ONE_OPERATOR, ExactOperators
from opdump.adapters.torch.device_graphs import DeviceGraphs
from opdump.adapters.torch.failures import FunctionFailures
from opdump.adapters.torch.private_names import all_operators, has_kernel


class OnlyOn(TorchDispatchMode):
    """A mode that only records names: what a capture would be without `ExactOperators`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


Note = Callable[[str, bool], None]


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """Record whether a bare mode changes a result on this CPU; opdump promises nothing about that."""

    def write(name: str, shows: bool) -> None:
        record_property("counts", {f"hazards of a bare mode {'seen' if shows else 'not seen'} here": 1})
        print(f"{name}: a bare mode {'changes' if shows else 'does not change'} the result on this processor")

    return write


def differ(one: Tensor, other: Tensor) -> bool:
    return one.dtype is not other.dtype or not torch.equal(one, other)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


def gradient(function: Callable[[Tensor], Tensor], start: float = 1.0) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        result = function(x)
        result.backward(torch.full_like(result, start))
        assert x.grad is not None
        return x.grad

    return run


FORWARD: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str]] = {
    "svdvals": (torch.linalg.svdvals, normal(40, 30), "linalg_svdvals"),
    "cond": (torch.linalg.cond, normal(40, 40), "linalg_svdvals"),
    "norm of a matrix": (lambda x: torch.linalg.matrix_norm(x, 2), normal(60, 50), "linalg_svdvals"),
    "eigvalsh": (lambda x: torch.linalg.eigvalsh(x @ x.T), normal(40, 30), "linalg_eigvalsh"),
    "eigvals": (torch.linalg.eigvals, normal(150, 150), "linalg_eigvals"),
    "pinv": (torch.linalg.pinv, normal(5, 5, dtype=torch.complex128), "linalg_pinv"),
    "rank into a given tensor": (
        lambda x: torch.linalg.matrix_rank(x, out=torch.zeros((), dtype=torch.int64)),
        normal(6, 4),
        "linalg_matrix_rank",
    ),
    "norm into a given tensor": (lambda x: torch.linalg.norm(x, out=torch.zeros(())), normal(6, 4), "linalg_norm"),
    "max_pool1d": (lambda x: torch.nn.functional.max_pool1d(x, 2), normal(2, 3, 8), "max_pool1d"),
    "folded matmul": (lambda x: x @ normal(1, 512, 512), normal(64, 1, 512), "matmul"),
}

LINALG: Any = torch.linalg
if hasattr(LINALG, "polar"):  # from PyTorch 2.15 on
    POSITIVE = normal(5, 5, dtype=torch.complex128) @ normal(5, 5, dtype=torch.complex128).mH
    FORWARD["polar"] = (lambda x: LINALG.polar(x)[1], normal(5, 5, dtype=torch.complex128), "linalg_polar")
    FORWARD["root of a matrix"] = (LINALG.matrix_sqrth, POSITIVE, "linalg_matrix_sqrth")

BACKWARD: dict[str, tuple[Callable[[Tensor], Tensor], float, str]] = {
    "prod": (torch.prod, 1, "prod_backward"),
    "prod of a dimension": (lambda x: x.prod(0), 1, "prod_backward"),
    "cumprod": (lambda x: x.cumprod(0), 1, "cumprod_backward"),
    "max": (torch.max, torch.inf, "max_backward"),
    "min": (torch.min, torch.inf, "min_backward"),
    "median": (torch.median, torch.inf, "median_backward"),
    "nanmedian": (torch.nanmedian, torch.inf, "nanmedian_backward"),
}


@pytest.mark.parametrize("name", FORWARD)
def test_a_composite_keeps_its_bits_and_is_one_operator(name: str, note: Note, tmp_path: Path) -> None:
    function, x, op_type = FORWARD[name]
    plain = function(x)
    with OnlyOn():
        note(name, differ(function(x), plain))
    with opdump.capture(path=tmp_path):
        captured = function(x)
    assert torch.equal(captured, plain)
    (execution,) = opdump.open(tmp_path).executions(op_type=op_type)
    assert execution.op.kernel.startswith(f"aten::{op_type}")
    assert execution.inputs
    assert execution.outputs


@pytest.mark.parametrize("name", BACKWARD)
def test_a_gradient_keeps_its_bits_and_is_one_operator(name: str, note: Note, tmp_path: Path) -> None:
    function, start, op_type = BACKWARD[name]
    run, x = gradient(function, start), normal(7, 5)
    plain = run(x)
    with OnlyOn():
        note(name, differ(run(x), plain))
    with opdump.capture(path=tmp_path):
        captured = run(x)
    assert torch.equal(captured, plain)
    (execution,) = opdump.open(tmp_path).executions(op_type=op_type)
    assert execution.op.phase == "backward"
    recorded = execution.outputs[0].payload
    assert recorded is not None
    assert np.array_equal(recorded.to_host(), plain.numpy())


def test_the_gradient_of_a_filling_value_keeps_its_bits(note: Note, tmp_path: Path) -> None:
    x, mask = normal(301, 70), normal(301, 70) > 0.3

    def run() -> Tensor:
        value = torch.tensor(2.0, requires_grad=True)
        (x.masked_fill(mask, value) * normal(1, 301, 70)[0]).sum().backward()
        assert value.grad is not None
        return value.grad

    plain = run()
    with OnlyOn():
        note("masked_fill", differ(run(), plain))
    with opdump.capture(path=tmp_path):
        assert torch.equal(run(), plain)


def test_a_gradient_that_is_not_defined_is_refused_under_capture_too(tmp_path: Path) -> None:
    def run() -> None:
        x = normal(4, 4, dtype=torch.complex128).requires_grad_()
        vectors = torch.linalg.eig(x).eigenvectors
        vectors.backward(1j * vectors.detach())  # depends on the phase, which is arbitrary

    with pytest.raises(RuntimeError, match="eigenvectors"):
        run()
    with opdump.capture(path=tmp_path), pytest.raises(RuntimeError, match="eigenvectors"):
        run()


@pytest.mark.parametrize("function", [torch.fft.hfft2, lambda x: torch.einsum("ij,kj->ik", x, x)])
def test_composites_keep_their_bits_in_inference_mode(
    function: Callable[[Tensor], Tensor], note: Note, tmp_path: Path
) -> None:
    def run() -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return function(normal(8, 8))

    plain = run()
    with OnlyOn():
        note("inference mode", differ(run(), plain))
    with opdump.capture(path=tmp_path):
        captured = run()
    assert captured.dtype is plain.dtype
    assert torch.equal(captured, plain)


@pytest.mark.parametrize("name", ["pinv", "bilinear"])
def test_an_operator_that_calls_others_keeps_its_precision_under_autocast(
    name: str, note: Note, tmp_path: Path
) -> None:
    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            if name == "pinv":
                inverse: Tensor = torch.linalg.pinv(normal(6, 6))
                return inverse
            return torch.nn.functional.bilinear(normal(4, 8), normal(4, 8), normal(3, 8, 8))

    plain = run()
    with OnlyOn():
        note(name, differ(run(), plain))
    with opdump.capture(path=tmp_path):
        captured = run()
    assert captured.dtype is plain.dtype
    assert torch.equal(captured, plain)


@pytest.fixture
def custom() -> Iterator[Callable[[Tensor], Tensor]]:
    library = torch.library.Library("opdumptest", "DEF")
    library.define("gram(Tensor x) -> Tensor")
    library.impl("gram", lambda x: x.mH @ x, "CPU")
    try:
        yield torch.ops.opdumptest.gram
    finally:
        library._destroy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_an_operator_of_another_library_runs_as_without_capture(
    custom: Callable[[Tensor], Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    x = normal(6, 6, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
        plain = custom(x)
        with opdump.capture(path=tmp_path):
            captured = custom(x)
    assert captured.dtype is plain.dtype
    assert torch.equal(captured, plain)
    (execution,) = opdump.open(tmp_path).executions(op_type="gram")
    assert execution.op.kernel == "opdumptest::gram"
    assert execution.inputs[0].argument == "x"


def test_what_is_written_into_a_given_tensor_is_there_under_capture(tmp_path: Path) -> None:
    def run() -> tuple[int, int]:
        rank = torch.zeros((), dtype=torch.int64)
        torch.linalg.matrix_rank(normal(6, 4), out=rank)
        return int(rank), rank._version

    plain = run()
    assert plain[0] == 4
    with opdump.capture(path=tmp_path):
        assert run() == plain


@pytest.mark.parametrize("captures", [{}, {"exception": True}])
def test_an_operator_of_another_library_without_tensors_may_run_again_and_again(
    captures: dict[str, Any], tmp_path: Path
) -> None:
    library = torch.library.Library("opdumpcounts", "DEF")
    library.define("count(int x) -> int")
    library.impl("count", lambda x: x + 1, "CompositeExplicitAutograd")
    plan = opdump.DumpPlan(path=tmp_path, captures="exception") if captures else opdump.DumpPlan(path=tmp_path)
    try:
        with opdump.capture(plan):
            assert [torch.ops.opdumpcounts.count(number) for number in range(3)] == [1, 2, 3]
    finally:
        library._destroy()


def test_a_product_with_a_sparse_matrix_keeps_its_precision_under_autocast(note: Note, tmp_path: Path) -> None:
    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            product: Tensor = torch.sparse.mm(normal(6, 6).to_sparse(), normal(6, 6))
            return product

    plain = run()
    with OnlyOn():
        note("sparse.mm", differ(run(), plain))
    with opdump.capture(path=tmp_path):
        captured = run()
    assert captured.dtype is plain.dtype
    assert torch.equal(captured, plain)


def test_a_failing_gradient_leaves_capture_on(tmp_path: Path) -> None:
    def fail(gradients: object) -> None:
        raise ValueError("a hook of the program")

    with opdump.capture(path=tmp_path):
        x = normal(4).requires_grad_()
        result = x.prod()
        assert result.grad_fn is not None
        result.grad_fn.register_prehook(fail)
        with pytest.raises(ValueError, match="a hook of the program"):
            result.backward()
        torch.ones(2).neg()
    assert any(opdump.open(tmp_path).executions(op_type="neg"))
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)


def test_a_gradient_that_runs_after_the_capture_is_left_unchanged(tmp_path: Path) -> None:
    x = normal(7).requires_grad_()
    with opdump.capture(path=tmp_path):
        result = x.prod()
    result.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, gradient(torch.prod)(normal(7)))


def test_checkpointed_gradients_unpack_what_they_saved_once(tmp_path: Path) -> None:
    def run() -> Tensor:
        x = normal(7).requires_grad_()
        torch.utils.checkpoint.checkpoint(lambda y: (y * 2).prod(), x, use_reentrant=False).backward()
        assert x.grad is not None
        return x.grad

    plain = run()
    with opdump.capture(path=tmp_path):
        assert torch.equal(run(), plain)


def test_another_dispatch_mode_of_the_program_sees_what_it_always_saw(tmp_path: Path) -> None:
    x = normal(5, 4)
    with OnlyOn() as alone:
        plain = torch.linalg.svdvals(x)
    with opdump.capture(path=tmp_path), OnlyOn() as together:
        captured = torch.linalg.svdvals(x)
    assert torch.equal(captured, plain)
    assert together.seen == alone.seen


def test_transforms_of_functions_work_under_capture(tmp_path: Path) -> None:
    def run() -> tuple[Tensor, Tensor]:
        x = normal(3, 4, 4)
        return torch.vmap(torch.linalg.svdvals)(x), torch.func.grad(torch.prod)(x[0])

    plain = run()
    with opdump.capture(path=tmp_path):
        captured = run()
    assert torch.equal(captured[0], plain[0])
    assert torch.equal(captured[1], plain[1])


def test_a_gradient_in_forward_mode_multiplies_tensors_with_numbers(tmp_path: Path) -> None:
    """PyTorch's formula for the gradient of a normalisation calls `prims::mul(x, -1)`."""

    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (3,)).square().sum()

    def run() -> Any:
        x = normal(4, 3)
        return torch.func.jvp(torch.func.grad(loss), (x,), (x.cos(),))

    plain = run()
    with opdump.capture(path=tmp_path):
        captured = run()
    assert [torch.equal(*pair) for pair in zip(captured, plain, strict=True)] == [True, True]


def test_nothing_is_registered_once_the_capture_has_ended(tmp_path: Path) -> None:
    known = set(torch._C._dispatch_get_all_op_names())
    names = [name for name in (f"aten::{each}" for each in (*ONE_OPERATOR, *GRADIENTS, "matmul")) if name in known]

    def own() -> list[str]:
        return [name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "PythonTLSSnapshot")]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opdump.capture(path=tmp_path):
            assert own() == names
    assert own() == []


@pytest.mark.parametrize("layer", ["linear", "attention", "lstm"])
def test_a_batch_that_is_not_contiguous_is_multiplied_alike_in_inference_mode(layer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    linear, attention = torch.nn.Linear(16, 48), torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    lstm = torch.nn.LSTM(16, 16, batch_first=True)
    runs = {
        "linear": lambda: linear(x.transpose(0, 1)),
        "attention": lambda: attention(x, x, x, need_weights=False)[0],
        "lstm": lambda: lstm(x)[0],
    }
    # A default device is a function mode, under which attention leaves its fast path.
    with torch.inference_mode(), torch.device("cpu"):
        plain = runs[layer]()
        with opdump.capture(path=tmp_path):
            captured = runs[layer]()
    assert torch.equal(plain, captured)


def test_an_operator_that_goes_away_while_operators_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its library may be garbage, which the collector can delete at any time.
    listed = all_operators()
    monkeypatch.setattr(composites, "all_operators", lambda: [*listed, "opdump_gone::spoil"])
    with opdump.capture(path=tmp_path) as dump:
        torch.ones(3) + 1
    assert dump.report is not None
    assert dump.report.captured == 2
    with pytest.raises(RuntimeError, match="NoSuchKey"):
        has_kernel("aten::add.Tensor", "NoSuchKey")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_capture_that_cannot_begin_leaves_nothing_behind(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> None:
        raise error("by this test")

    def in_torch() -> list[Any]:
        counted = has_kernel("aten::linalg_svdvals", "PythonTLSSnapshot")
        functions = [
            nn.Module.__call__,
            torch.Future.then,
            torch.inference_mode.__exit__,
            torch.autograd.Function.apply,
        ]
        modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
        return [counted, functions, modes, sys.getrecursionlimit()]

    before = in_torch()
    for part, name in [(ExactOperators, "adopt"), (DeviceGraphs, "attach"), (FunctionFailures, "attach")]:
        with monkeypatch.context() as patch:
            patch.setattr(part, name, fails)
            with pytest.raises(error, match="by this test"), opdump.capture(path=tmp_path, on_exception=True):
                pass
        assert in_torch() == before
