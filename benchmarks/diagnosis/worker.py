"""A process with a framework imported that forks for each task: it runs programs under capture, compares dumps, and reads end states of runs.

It reads tasks as lines of JSON and answers each with a line of JSON. It runs no operator itself, so that children may use threads.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.diagnosis.programs import ACROSS

Task = dict[str, Any]


_ROOT: Final = Path(__file__).parents[2]
_ENVIRONMENT: Final = {
    "jax": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    "tensorflow": {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
    "mindspore": {"OMP_NUM_THREADS": "1", "GLOG_v": "3"},
}
"""Environment variables that must be set before the framework starts."""


def _python(framework: str) -> str:
    """The interpreter that has a framework. Raises SystemExit if there is none."""
    if framework in ("torch", "onnx"):
        return sys.executable
    python = _ROOT / f".venv-{framework}" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"found no {python}; run: make test-{framework}")
    return str(python)


def _inherited(framework: str) -> dict[str, str]:
    """This process's environment variables. Other environments than that of PyTorch and ONNX may have another Python, so they must not require the
    compiled modules.
    """
    if framework in ("torch", "onnx"):
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name != "OPDUMP_REQUIRE_NATIVE"}


def _compiled_modules() -> list[str]:
    """The compiled modules of this process's opdump, as NAME=FILE."""
    found = (importlib.util.find_spec(f"opdump.{room}._native") for room in ("kernels", "interpreter"))
    return [f"{spec.name}={spec.origin}" for spec in found if spec is not None]


def _use_compiled(modules: list[str]) -> None:
    """Load compiled modules of another environment before opdump is imported; without them, everything takes about twice as long."""
    for name, _, file in (module.partition("=") for module in modules):
        if file.endswith(importlib.machinery.EXTENSION_SUFFIXES[0]):  # compiled for this version of Python
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])


class Worker:
    """The client of a worker process and its pipe. `ask` waits for the answer."""

    def __init__(self, framework: str = "torch") -> None:
        framework = "torch" if framework == ACROSS else framework
        self._workers = {framework: self}
        self._process = subprocess.Popen(
            [_python(framework), "-m", "benchmarks.diagnosis.worker", framework, *_compiled_modules()],
            cwd=_ROOT,
            env={**_inherited(framework), "PYTHONPATH": str(_ROOT / "src"), **_ENVIRONMENT.get(framework, {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def of(self, framework: str) -> Worker:
        """The worker of a framework: this one, or one that is started on first use and closed with this one."""
        if framework not in self._workers:
            self._workers[framework] = Worker(framework)
        return self._workers[framework]

    def ask(self, do: str, **task: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **task}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended while it was asked to {do}; its last lines on stderr say why")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        for worker in self._workers.values():
            with worker._process:
                pass  # leaving the block closes both pipes and waits


def dump(task: Task) -> float:
    """Run a script under `opdump run`, and return its time in seconds."""
    from opdump.commands import main

    began = time.perf_counter()
    apply(task["settings"])
    elements = ["--full"] if task["full"] else []
    try:
        main(["run", "--path", task["out"], *elements, task["script"]], standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{task['script']} ended with {end.code}; its output is in {task['log']}") from end
    return time.perf_counter() - began


def apply(settings: list[str]) -> None:
    """Apply settings to this process before a program runs."""
    named = dict(setting.partition("=")[::2] for setting in settings)
    named.pop("again", None)  # the same program again
    if "torch" not in sys.modules:
        if named:
            raise ValueError(f"unknown setting {next(iter(named))}")
        return
    import torch

    torch.set_num_threads(int(named.pop("threads", "1")))
    for name, value in named.items():
        if name == "mkldnn":
            torch.backends.mkldnn.flags(enabled=value == "on").__enter__()
        elif name == "sdpa":
            kind = {"math": "MATH", "flash": "FLASH_ATTENTION"}[value]
            torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, kind)).__enter__()
        elif name == "deterministic":
            torch.use_deterministic_algorithms(True)
        else:
            raise ValueError(f"unknown setting {name}")


def tasks() -> dict[str, Callable[[Task], Any]]:
    from benchmarks.diagnosis.comparison import compare_dumps
    from benchmarks.diagnosis.run_ends import run_end

    return {"dump": dump, "compare": compare_dumps, "run_end": run_end}


def in_child(work: Callable[[Task], Any], task: Task) -> Any:
    """The answer of a forked process; its output goes to a file."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        log = os.open(task.get("log", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            answer = {"result": work(task)}
        except BaseException:  # noqa: BLE001  # any failure is reported to the client
            answer = {"error": traceback.format_exc()}
        with open(writing, "w") as pipe:
            json.dump(answer, pipe)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the process ended without an answer: {task}"}


_WARM_UP: Final = {
    "torch": """
import torch, torch.nn.attention, torch.utils.checkpoint, torch._dynamo
layer = torch.nn.Linear(2, 2)
rule = torch.optim.AdamW(layer.parameters())
with torch.no_grad():
    layer(torch.ones(2))
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    rule.step()
""",
    "onnx": "import torch, onnx, onnxruntime",
    "jax": "import jax.numpy",
    "tensorflow": "import tensorflow",
    "mindspore": "import mindspore",
}
"""Imports the modules that a capture imports, so that no child has to. PyTorch runs no backward here: after one, a forked process could
not run any. The other frameworks run no operator: their threads would not exist in a forked process.
"""


def warm_up(known: dict[str, Callable[[Task], Any]], framework: str) -> None:
    """Import what the tasks import: in PyTorch, by a dump of a small program and its comparison with itself."""
    if framework != "torch":
        exec(_WARM_UP[framework], {})
        return
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "warm_up.py"
        script.write_text(_WARM_UP[framework])
        known["dump"]({"settings": [], "full": True, "out": f"{folder}/dump", "script": str(script), "log": ""})
        known["compare"]({"a": f"{folder}/dump", "b": f"{folder}/dump", "methods": ["opdump"]})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stderr stays, so that a worker that cannot start says why
    framework, *compiled_modules = sys.argv[1:]
    _use_compiled(compiled_modules)
    known = tasks()
    with tempfile.TemporaryDirectory() as compiled:
        # Most functions of a program with a fault were compiled before, for the program without it.
        os.environ.update(JAX_COMPILATION_CACHE_DIR=compiled, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
        warm_up(known, framework)
        for line in sys.stdin:
            task = json.loads(line)
            answers.write(json.dumps(in_child(known[task["do"]], task)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
