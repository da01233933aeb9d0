"""Runs a program under capture once for each private name of PyTorch, in a process in which that name is missing.

    python -m tests.torch.missing_names DIRECTORY      prints a line of JSON for each name

PyTorch keeps the name; only the adapter does not find it. Each attempt is a fork of this process, which has not imported the adapter.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.export._trace
import torch.onnx
from torch import nn
from torch.utils.checkpoint import checkpoint

import opdump
import opdump.capturing.capture

LOOKUP = "opdump.adapters.torch.names_by_release"
NAMES = "opdump.adapters.torch.private_names"


def program() -> list[torch.Tensor]:
    """A training with operators that a dispatch mode would change, a checkpoint, and a sum in a compiled function."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    answers = []
    doubled = torch.compile(lambda x: x * 2 + x.sum(), backend="aot_eager")
    for _ in range(2):
        x = torch.randn(5, 4)
        hidden = checkpoint(net, x, use_reentrant=False)
        loss = hidden.prod(dim=1).sum() + torch.linalg.svdvals(hidden).sum() + doubled(hidden).sum()
        loss.backward()
        optimizer.step()
        answers += [loss.detach().clone(), *(parameter.grad.clone() for parameter in net.parameters())]  # type: ignore[union-attr]
        optimizer.zero_grad()
    return answers


def load(hidden: tuple[str, ...] = ()) -> Any:
    """Import the module of names with the given names hidden from it. The `hasattr` in the module's namespace takes precedence over the builtin."""
    spec = importlib.util.find_spec(LOOKUP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    places = [_place(path) for path in hidden]
    for path in hidden:
        if path in sys.modules:
            sys.modules[path] = None  # type: ignore[assignment]  # Python marks modules that cannot be imported this way

    def finds(owner: Any, name: str) -> bool:
        return hasattr(owner, name) and not any(owner is found and name == last for found, last in places)

    vars(module)["hasattr"] = finds
    sys.modules[LOOKUP] = module
    spec.loader.exec_module(module)
    importlib.import_module(NAMES)
    return module


def _place(path: str) -> tuple[Any, str]:
    *names, last = path.split(".")[1:]
    found: Any = torch
    for name in names:
        found = getattr(found, name, None)
    return found, last


def _outcome(row: Any, directory: Path, plain: list[torch.Tensor]) -> dict[str, Any]:
    """The outcome without one name."""
    modules = {path: sys.modules[path] for path in row.paths if path in sys.modules}
    load(row.paths)
    mode: dict[str, Any] = {"on_exception": True} if row.of.name == "calls" else {}
    path = tempfile.mkdtemp(dir=directory)
    with opdump.capture(path=path, **mode) as dump:
        sys.modules.update(modules)
        answers = program()
    report = dump.report
    assert report is not None
    return {
        "same": all(torch.equal(one, other) for one, other in zip(plain, answers, strict=True)),
        "warnings": report.warnings,
        "captured": report.captured,
        "nothing": "" if report.nothing is None else report.nothing.reason,
    }


def in_a_fork(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` returns in a child of this process, with the error that ended it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = {"error": "", **run()}
        except BaseException:  # noqa: BLE001  any error is reported in the test
            found = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(text) if text else {"error": "the process died"}
    assert isinstance(found, dict)
    return found


def main() -> None:
    """Print a line for each name."""
    directory = Path(sys.argv[1])
    plain = program()
    for number in range(_count()):
        found = in_a_fork(lambda number=number: _one(number, directory, plain))  # type: ignore[misc]
        print(json.dumps(found), flush=True)


def _count() -> int:
    """The number of names."""
    return int(in_a_fork(lambda: {"count": len(load().NAMES)})["count"])


def _one(number: int, directory: Path, plain: list[torch.Tensor]) -> dict[str, Any]:
    """The outcome without the name in that row."""
    row = load().NAMES[number]
    del sys.modules[NAMES], vars(sys.modules["opdump.adapters.torch"])["private_names"]
    return {"path": row.paths[0], **_outcome(row, directory, plain)}


if __name__ == "__main__":
    main()
