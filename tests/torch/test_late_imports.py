"""A capture imports no part of PyTorch that the program does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch.releases import gradient_of

pytestmark = pytest.mark.torch

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
