"""Makes the dumps of a pair once, in a cache, for every method to compare."""

from __future__ import annotations

import queue
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.programs import FRAMEWORKS, NETWORKS, SHARED, Program
from benchmarks.diagnosis.scoring import Score, scored
from benchmarks.diagnosis.suite import Pair
from benchmarks.diagnosis.worker import Worker


class Workers:
    """A pool of workers, each used by one thread at a time."""

    def __init__(self, count: int, framework: str = "torch") -> None:
        self.count = count
        self._all = [Worker(framework) for _ in range(count)]
        self._free: queue.Queue[Worker] = queue.Queue()
        for worker in self._all:
            self._free.put(worker)

    @contextmanager
    def one(self) -> Iterator[Worker]:
        worker = self._free.get()
        try:
            yield worker
        finally:
            self._free.put(worker)

    def each(
        self, work: Callable[[Worker, Pair], list[Any]], pairs: Iterable[Pair]
    ) -> Iterator[tuple[Pair, list[Any]]]:
        """Each pair with the result of `work`, in the order in which they are finished."""

        def with_worker(pair: Pair) -> tuple[Pair, list[Any]]:
            with self.one() as worker:
                return pair, work(worker, pair)

        pool = ThreadPoolExecutor(self.count)
        try:
            for done in as_completed([pool.submit(with_worker, pair) for pair in pairs]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        for worker in self._all:
            worker.close()


class Dumps:
    """Dumps in a directory, by program and mode. Unless `keep`, those of a program are deleted when all `pairs` with it are done."""

    def __init__(self, root: Path, pairs: Iterable[Pair] = (), *, keep: bool = False) -> None:
        self.root = root
        self._keep = keep
        self._uses = Counter(program.key for pair in pairs for program in (pair.a, pair.b))
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """One thread at a time creates the entry with that name."""
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            yield

    def script(self, program: Program) -> Path:
        """The file that runs; it has the name of the network's script."""
        folder = self.root / program.key
        path = folder / program.file
        with self.locked(program.key):
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(program.source())
                if program.framework in SHARED:
                    shutil.copy(NETWORKS / program.framework / f"{SHARED[program.framework]}.py", folder)
        return path

    def made(self, worker: Worker, program: Program, mode: str) -> Path:
        """The dump of a program, which runs unless the dump exists."""
        script = self.script(program)
        out = script.parent / mode
        with self.locked(str(out)):
            if not out.with_suffix(".done").exists():
                shutil.rmtree(out, ignore_errors=True)
                worker.of(program.runs_in).ask(
                    "dump",
                    script=str(script),
                    out=str(out),
                    full=mode == "tensors",
                    settings=list(program.settings),
                    log=f"{out}.log",
                )
                out.with_suffix(".done").touch()
        return out

    def done(self, pair: Pair) -> None:
        """Delete the dumps of the programs of a pair that no other pair needs."""
        for program in (pair.a, pair.b):
            with self._lock:
                self._uses[program.key] -= 1
                is_last = self._uses[program.key] <= 0
            if is_last and not self._keep:
                shutil.rmtree(self.root / program.key, ignore_errors=True)


def scores_of(worker: Worker, pair: Pair, dumps: Dumps, methods: Iterable[str], modes: Iterable[str]) -> list[Score]:
    """The score of every method for a pair. The score of a method that fails contains its error."""
    found: list[Score] = []
    for mode in modes:
        a, b = dumps.made(worker, pair.a, mode), dumps.made(worker, pair.b, mode)
        reader = min((pair.a.runs_in, pair.b.runs_in), key=FRAMEWORKS.index)  # PyTorch runs most operators again
        answers = worker.of(reader).ask("compare", a=str(a), b=str(b), methods=list(methods))
        found += [scored(pair, method, mode, answer) for method, answer in answers.items()]
    dumps.done(pair)
    return found
