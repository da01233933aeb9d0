"""Forward-mode derivatives: the same bits with and without capture, for every operator of `op_db` that supports them.

    operators 92, tangents 288, tangents of gradients 288; differing 0

By default, a part of the operators run, including those that a mode is known to change; `OPDUMP_OP_DB=all` runs all of them.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.nn import functional
from torch.testing._internal.common_methods_invocations import op_db

import opdump
from opdump.adapters.base import Settings
from opdump.adapters.torch.adapter import ADAPTER
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from tests.torch.op_db.bits import differences
from tests.torch.op_db.samples import Run
from tests.torch.op_db.statistics import CheckedInMemory
from tests.torch.op_db.tangents import TYPES, DualCase, dual_cases

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch warns about its own use
SHARDS = 8
_AT_ONCE = 10
_REPETITIONS = 20
_KNOWN = ("norm", "prod", "linalg.pinv", "linalg.svd")
"""Parts of the names of operators that a mode changes."""


def attempt(case: DualCase) -> Run | Exception:
    try:
        return case.copied().run()
    except Exception as error:  # noqa: BLE001  # an operator that refuses a sample must also refuse it under capture
        return error


def find(operators: list[Any], counts: Counter[str]) -> dict[str, str]:
    """The operators whose tangents differ under capture."""
    found = [
        (operator.name, case, attempt(case))
        for operator in operators
        for dtype in TYPES
        for case in dual_cases(operator, dtype, 2)
    ]
    differing: dict[str, str] = {}
    plan = DumpPlan(path=Path("unused"), saved_data="statistic")
    recorder = Recorder(plan, CheckedInMemory(), ADAPTER.reader(plan))
    captured = []
    with ADAPTER.attach(recorder, Settings(steps="manual")) as clock:
        for _, case, _ in found:
            captured.append(attempt(case))
            clock.manual_step()
    for (name, case, plain), run in zip(found, captured, strict=True):
        counts[case.form] += 1
        if isinstance(plain, Exception) or isinstance(run, Exception):
            counts["refused"] += type(plain) is type(run)
            if type(plain) is not type(run):
                differing[name] = f"{case.form}: {plain!r} plainly, {run!r} under capture"
        elif (different := differences(plain, run)) and not _varies(case, plain):
            differing[name] = f"{case.form}: {different[0]}"
    counts["operators"] += len(operators)
    return differing


def _varies(case: DualCase, plain: Run) -> bool:
    again = (attempt(case) for _ in range(_REPETITIONS))
    return any(isinstance(run, Run) and bool(differences(plain, run)) for run in again)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_tangents_have_the_same_bits_under_capture(shard: int, record_property: Callable[[str, object], None]) -> None:
    operators = [operator for operator in op_db if operator.supports_forward_ad]
    if os.environ.get("OPDUMP_OP_DB") != "all":
        known = [operator for operator in operators if any(part in operator.name for part in _KNOWN)]
        operators = known + [operator for operator in operators[::8] if operator not in known]
    counts: Counter[str] = Counter()
    differing: dict[str, str] = {}
    share = operators[shard::SHARDS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples use deprecated functions
        for start in range(0, len(share), _AT_ONCE):
            differing |= find(share[start : start + _AT_ONCE], counts)
    counts["differing"] = len(differing)
    record_property("counts", {f"tangents: {name}": count for name, count in counts.items()})
    print(f"tangents, shard {shard}:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    assert differing == {}


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: functional.layer_norm(x, (8,)),
    "group_norm": lambda x: functional.group_norm(x, 3),
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "instance_norm": functional.instance_norm,
    "prod": torch.prod,
    "prod of a dimension": lambda x: x.prod(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "max": torch.max,
    "svdvals": torch.linalg.svdvals,
}
X = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))
V = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))


def _tangent(function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Any:
    return jvp(function, (x[None],), (v[None],))[1]


def _size(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x).square().sum()


def _tangents(function: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    return (vmap(partial(_tangent, function))(X, V),)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "jvp": lambda f: jvp(f, (X,), (V,)),
    "jvp of grad": lambda f: jvp(grad(partial(_size, f)), (X,), (V,)),
    "jacfwd": lambda f: (jacfwd(f)(X[:2]),),
    "hessian": lambda f: (hessian(lambda y: f(y).sum())(X[:2]),),
    "vmap of grad": lambda f: (vmap(grad(lambda y: f(y[None]).square().sum()))(X),),
    "vmap of jvp": _tangents,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_of_functions_have_the_same_bits_under_capture(name: str, transform: str, tmp_path: Path) -> None:
    def run() -> Any:
        return TRANSFORMS[transform](FUNCTIONS[name])

    plain = run()
    with opdump.capture(path=tmp_path):
        captured = run()
    assert all(torch.equal(one, other) for one, other in zip(plain, captured, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tangent_has_the_same_bits_under_capture(name: str, tmp_path: Path) -> None:
    def run() -> tuple[Tensor, Tensor]:
        with torch.autograd.forward_ad.dual_level():
            result = FUNCTIONS[name](torch.autograd.forward_ad.make_dual(X, V))
            primal, tangent = torch.autograd.forward_ad.unpack_dual(result)
            assert tangent is not None
            return primal.clone(), tangent.clone()

    plain = run()
    with opdump.capture(path=tmp_path):
        captured = run()
    assert torch.equal(captured[0], plain[0])
    assert torch.equal(captured[1], plain[1])
