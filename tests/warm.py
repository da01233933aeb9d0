"""Run `opdump run` many times without waiting for imports: one process imports everything and forks a child per run.

    python -m tests.warm

It reads orders from standard input, one JSON object per line, and answers each with a line.
{"import": [name, ...]} imports modules. {"runs": [[arguments, environ, cwd, queue], ...], "files": prefix, "kill_after":
seconds or null} starts all of these runs at once. The output of run n goes to {prefix}-{n}.out and .err, and the answer
is {"codes": [...], "seconds": ...}, with a negative code for a signal.

A child begins as `python -m opdump ARGUMENTS` in its directory does, and ends through interpreter exit. The process that
forks computes nothing, so no thread of a framework exists before the fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

ROOT: Final = Path(__file__).parents[1]
PLAIN: Final = "python"
"""The first argument of a run without opdump."""
TRAINING_MODULES: Final = (
    *("torch", "torch._dynamo", "numpy.typing", "ml_dtypes", "sqlite3", "click", "rich.console"),
    *("google.protobuf.internal.builder", "google.protobuf.descriptor_pb2", "google.protobuf.text_format"),
)
"""What a training imports, first of all `torch._dynamo`, which the first step of an optimizer imports; nothing of opdump."""
_MODULES: Final = "CHAOS_MODULES"
"""The environment variable with the path of the file for the names of the modules that a run imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: the arguments of `opdump` and the settings of its process. In `environ`, None removes a variable. `queue`: the
    number of bytes that may wait for the disk.
    """

    arguments: Sequence[str]
    environ: Mapping[str, str | None] = field(default_factory=dict)
    cwd: Path = ROOT
    queue: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How the runs of an order ended, and what each printed."""

    codes: tuple[int, ...]
    seconds: float
    out: tuple[str, ...]
    err: tuple[str, ...]


class Warm:
    """The process that forks. It has imported `modules` and what `first` imports; its children print into files in `folder`.

    `environ` is its environment, without settings of dumps.
    """

    def __init__(self, folder: Path, *first: Run, modules: Sequence[str] = ()) -> None:
        self._folder = folder
        self._count = 0
        # The runs must not inherit the caller's settings.
        own = ("OPDUMP_", "MINDSPORE_", "MS_", "ASCEND_", "RANK", "WORLD_SIZE")
        inherited = {key: text for key, text in os.environ.items() if not key.startswith(own)}
        self.environ: Final = {**inherited, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=self.environ,
        )
        self._ask({"import": modules})
        imported = folder / "modules"
        for run in first:
            ended = self.run(Run(arguments=run.arguments, environ={**run.environ, _MODULES: str(imported)}))
            assert ended.codes == (0,), ended.err
            self._ask({"import": imported.read_text().split()})

    def close(self) -> None:
        self._process.communicate("")

    def run(self, *runs: Run, kill_after: float | None = None) -> Ended:
        """Run all of these at once until they end; the first is killed after `kill_after` seconds."""
        self._count += 1
        prefix = self._folder / f"run-{self._count}"
        orders = [[list(run.arguments), dict(run.environ), str(run.cwd), run.queue] for run in runs]
        answer = self._ask({"runs": orders, "files": str(prefix), "kill_after": kill_after})
        files = [(Path(f"{prefix}-{number}.out"), Path(f"{prefix}-{number}.err")) for number in range(len(runs))]
        texts = [(out.read_text(), err.read_text()) for out, err in files]
        for pair in files:
            for file in pair:
                file.unlink()
        out, err = zip(*texts, strict=True)
        return Ended(tuple(answer["codes"]), answer["seconds"], out, err)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _serve() -> Sequence[Any] | None:
    """Answer orders until they end, then return None; in a child, return its run."""
    for line in sys.stdin:
        order = json.loads(line)
        for name in order.get("import", ()):
            # Only to save time later: a module that cannot be imported by name is imported by the run.
            with suppress(ImportError, AttributeError, KeyError):
                importlib.import_module(name)
        gc.freeze()  # an exiting child does not traverse objects from before the fork
        began = time.monotonic()
        children = []
        for number, run in enumerate(order.get("runs", ())):
            # Opened before the child exists, which may be killed at once.
            streams = [_opened(f"{order['files']}-{number}.{kind}") for kind in ("out", "err")]
            child = os.fork()
            if child == 0:
                _redirect(*streams)
                return cast("Sequence[Any]", run)
            for each in streams:
                os.close(each)
            children.append(child)
        if order.get("kill_after") is not None:
            time.sleep(order["kill_after"])
            os.kill(children[0], signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps({"codes": codes, "seconds": time.monotonic() - began}), flush=True)
    return None


def _opened(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _redirect(out: int, err: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, out, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _begin(arguments: list[str], environ: Mapping[str, str | None], cwd: str, queue: int | None) -> None:
    for name, text in environ.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text
    os.chdir(cwd)
    sys.path[0] = cwd
    # What the parent has and a new interpreter has not.
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    if modules := os.environ.get(_MODULES):
        atexit.register(lambda: Path(modules).write_text("\n".join(sys.modules)))
    if arguments[0] == PLAIN:
        sys.argv = arguments[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    if queue is not None:
        from opdump.plan import dump_plan

        vars(dump_plan)["LONGEST_QUEUE"] = (
            queue  # setting `max_memory` in the plan would have the same effect, but would also be reported
        )
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [sys.executable, "-m", "opdump", *arguments]
    vars(runpy)["_run_module_as_main"]("opdump")  # what the interpreter calls for `-m`


if __name__ == "__main__":
    order = _serve()
    if order is not None:
        _begin(*order)
