"""Private names of PyTorch are all in one file, and a capture imports no part of PyTorch that the program does not import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdump.adapters.torch import private_names
from opdump.adapters.torch.names_by_release import NAMES
from tests.torch.releases import gradient_of

pytestmark = pytest.mark.torch

ADAPTER = Path(private_names.__file__).parent
ROOT = Path(__file__).parents[2]
TREES = {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(ADAPTER.glob("*.py"))}
OF_PYTHON = {"_getframe", "_make", "_replace"}
"""Private names in `sys` and in named tuples."""


def _own_names() -> set[str]:
    """Attributes that the adapter itself defines."""
    own = set(OF_PYTHON)
    for node in (node for tree in TREES.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            own.add(node.attr)
    return own


def _is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


def _attributes_by_text(node: ast.AST) -> Iterator[ast.Constant]:
    """Strings that may name an attribute: `getattr(module, "_orig_mod")`, `"_orig_mod" in vars(module)`; not strings in tables."""
    places: list[ast.expr] = []
    if isinstance(node, ast.Call) and ast.unparse(node.func) != "frozenset":
        places = node.args
    elif isinstance(node, ast.Compare):
        places = [node.left]
    elif isinstance(node, ast.Subscript):
        places = [node.slice]
    yield from (place for place in places if isinstance(place, ast.Constant))


def _foreign_names(tree: ast.Module, own: set[str]) -> list[str]:
    found = []
    listed = {part for row in NAMES for path in row.paths for part in path.split(".") if _is_private(part)}
    listed |= {private_names.WRAPPED, private_names.REPLICA, private_names.BOXED, *private_names.WRAPPED_BY_OTHERS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            below_torch = ast.unparse(node).startswith("torch._") and not ast.unparse(node).startswith("torch.__")
            if below_torch or (_is_private(node.attr) and node.attr not in own and not of_self):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("torch.") and _is_private(name.name)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found += [f"{node.module}.{name.name}" for name in node.names if _is_private(f"{node.module}.{name.name}")]
        else:
            found += [ast.unparse(text) for text in _attributes_by_text(node) if text.value in listed]
    return found


@pytest.mark.parametrize("file", [name for name in TREES if name != "private_names.py"])
def test_no_other_file_of_the_adapter_uses_a_private_name_of_pytorch(file: str) -> None:
    assert _foreign_names(TREES[file], _own_names()) == []


def test_the_search_finds_private_names() -> None:
    text = """
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode
torch._C._current_graph_task_id()
storage._cdata
getattr(module, "_orig_mod")
"""
    assert set(_foreign_names(ast.parse(text), _own_names())) == {
        "torch._dynamo",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch._C._current_graph_task_id",
        "torch._C",
        "storage._cdata",
        "'_orig_mod'",
    }


def test_the_page_of_releases_has_every_ability() -> None:
    page = (ROOT / "docs" / "torch-versions.md").read_text(encoding="utf-8")
    named = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")}
    assert {row.of.name for row in NAMES} <= named


ONLY_WITHOUT_OTHERS = {
    "torch._functorch._aot_autograd.runtime_wrappers",  # in releases without _AutogradBackwardCompiler
    "torch._dynamo.eval_frame._stance",  # with compile=eager
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_missing_name_costs_one_ability_and_never_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.torch.missing_names", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    outcomes = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [outcome["path"] for outcome in outcomes] == [row.paths[0] for row in NAMES]
    told = {}
    for row, outcome in zip(NAMES, outcomes, strict=True):
        assert outcome["error"] == "", outcome
        assert outcome["same"], f"{row.paths[0]}: the answer is another one"
        reasons = [warning for warning in outcome["warnings"] if "docs/torch-versions.md" in warning]
        if row.by:
            assert reasons == [], "something stands in for it"
            assert outcome["captured"] > 0 or row.of is private_names.CALLS
            continue
        told[row.paths[0]] = reasons
        if row.paths[0] in ONLY_WITHOUT_OTHERS:
            continue
        assert len(reasons) == 1, outcome
        assert row.paths[0] in reasons[0]
        assert row.of.lost in reasons[0]
        if row.of is private_names.OPERATORS:
            assert outcome["nothing"] == reasons[0]
        else:
            assert outcome["captured"] > 0 or row.of is private_names.CALLS
    assert told, "some names have nothing that stands in for them"


PROGRAM = r"""\
import sys
import torch
{}
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Softmax(dim=1))
for _ in range(2):
    net(torch.ones(3, 4)).prod().backward()
print(*(name for name in sys.modules if name.split(".")[0] in ("torch", "sympy", "networkx")), sep="\n")
"""

LATE = """\
import sys
import torch
import opdump

def doubled(x):
    return (x * 2).sum()

with opdump.capture(path="dump", eager={eager}, iteration="all"):
    assert "torch._dynamo" not in sys.modules
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)  # loads it
    assert "torch._dynamo" in sys.modules
    for _ in range(2):
        torch.compile(doubled, backend="aot_eager")(weight).backward()
        optimizer.step()
        optimizer.zero_grad()
    made = torch.nn.Linear(3, 3), (torch.zeros(1, 3),)
    torch.export.export(*made)
    torch.jit.trace(*made)
assert not [each for each in sys.meta_path if type(each).__module__.startswith("opdump")], sys.meta_path
for step in (0, 1):
    print(*(op.op_type for op in opdump.open("dump").ops(step=step)))
"""


FOR_THE_PROFILER = {"torch.profiler._cupti_monitor"}
"""PyTorch's profiler imports it while it records stacks, and keeps addresses of names that are freed after an import."""


def _loaded(*command: str | Path, folder: Path) -> set[str]:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(
    "options", [(), ("--full",), ("--kernels", "addmm"), ("--eager",)], ids=["plain", "full", "kernels", "eager"]
)
def test_a_capture_loads_no_module_of_torch_that_the_program_does_not(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(""), encoding="utf-8")
    captured = _loaded("-m", "opdump", "run", "--path", tmp_path / "dump", *options, script, folder=tmp_path)
    assert captured - _loaded(script, folder=tmp_path) - FOR_THE_PROFILER == set()
    assert "torch._dynamo" not in captured
    assert (tmp_path / "dump").is_dir()


@pytest.mark.parametrize("config", ["level", "exception", "overflow"])
def test_the_modes_of_acl_json_load_no_module_of_torch_that_the_program_does_not(tmp_path: Path, config: str) -> None:
    keys = {
        "level": '"dump_list": [], "dump_op_switch": "on", "dump_level": "all", "dump_mode": "all"',
        "exception": '"dump_scene": "aic_err_brief_dump"',
        "overflow": '"dump_debug": "on"',
    }
    (tmp_path / "acl.json").write_text(f'{{"dump": {{"dump_path": "dump", {keys[config]}}}}}', encoding="utf-8")
    (tmp_path / "dump").mkdir()
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(""), encoding="utf-8")
    captured = _loaded("-m", "opdump", "run", "-c", "acl.json", script, folder=tmp_path)
    assert captured - _loaded(script, folder=tmp_path) - FOR_THE_PROFILER == set()


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_a_compiler_that_the_program_loads_during_the_capture_is_handled(tmp_path: Path, eager: bool) -> None:
    script = tmp_path / "program.py"
    script.write_text(LATE.format(eager=eager), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    step = (
        "mul sum ones_like mul add_" if eager else f"compiled_doubled ones_like {gradient_of('compiled_doubled')} add_"
    )
    # What is exported and traced afterwards does not run.
    assert done.stdout.splitlines() == [f"ones {step}", f"{step} uniform_ uniform_ zeros"]


@pytest.mark.parametrize("stop", [False, True], ids=["continue", "stop"])
def test_an_error_in_a_deferred_patch_is_a_failure_of_the_dump(tmp_path: Path, stop: bool) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, opdump\n"
        "from opdump.adapters.torch import compiled\n"
        "def broken(*_): raise OSError('no more')\n"
        "compiled.never_compile_package = broken\n"
        f"with opdump.capture(path='dump', on_error={'stop' if stop else 'continue'!r}) as dump:\n"
        "    torch.ones(3)\n"
        "    import torch._dynamo\n"
        "    print('went on')\n"
        "print(dump.report.failure)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ("went on" in done.stdout, done.returncode == 0) == (not stop, not stop), done.stderr
    assert "the dump cannot continue (no more)" in (done.stderr if stop else done.stdout)
