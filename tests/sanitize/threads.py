"""Call the kernels from several threads at once, as captures of threaded programs do.

    python -m tests.sanitize.threads

Every result must equal that of one thread. `make sanitize` runs it under ThreadSanitizer, which reports unordered
accesses to the same memory, one of them a write. Prints the number of calls.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump import kernels
from opdump.kernels import DTYPE_CODES, DigestBatch, SummaryTable

_THREADS: Final = 4
_ROUNDS: Final = 12
_LARGE: Final = 600_000
"""Elements, enough for the thread pool to share them."""
_CODE: Final = DTYPE_CODES["float32"]

Work = Callable[[int, int], None]
"""What a thread does in a round, given the numbers of both."""


def main() -> int:
    kernels.set_threads(3)
    wrong: list[str] = []
    calls = 0
    for work in (*_WORK, _everything_at_once):
        calls += _in_threads(work, wrong)
    _in_a_child(wrong)
    for each in wrong:
        print(each)
    print(f"{calls} calls from {_THREADS} threads, {len(wrong)} wrong")
    return 1 if wrong else 0


def _in_threads(work: Work, wrong: list[str]) -> int:
    start = threading.Barrier(_THREADS)

    def run(thread: int) -> None:
        start.wait()
        try:
            for turn in range(_ROUNDS):
                work(thread, turn)
        except Exception as error:  # noqa: BLE001  # it is reported, and the other threads continue
            wrong.append(f"{getattr(work, '__name__', work)}: {error!r}")

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(_THREADS)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return _THREADS * _ROUNDS


def _array(size: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


_SHARED: Final = _array(_LARGE, 0)
_OTHER: Final = _array(_LARGE, 1)
_SUMMARY: Final = kernels.summarise(_SHARED)
_PAIR: Final = kernels.compare_pair(_SHARED, _OTHER)
_TABLE: Final = SummaryTable()
_NAMES: Final = ("md5", "hash", "xxh3")
_DIGESTS: Final = DigestBatch(_NAMES, 1 << 20)
_SETS: Final = kernels.instruction_sets()


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {found}, expected {wanted}")


def summaries_of_shared_memory(thread: int, turn: int) -> None:
    _same(kernels.summarise(_SHARED), _SUMMARY)
    _same(kernels.summarise(_SHARED[::-1]), _SUMMARY)


def one_table(thread: int, turn: int) -> None:
    """Add rows from all threads; a thread's own rows are correct, whatever the others add."""
    own = _array(1000 + 100_000 * (turn % 2), 100 * thread + turn)
    row = _TABLE.add(own.ctypes.data, _CODE, own.size)
    pointers = np.array([own.ctypes.data, _SHARED.ctypes.data], np.int64)
    first = _TABLE.add_all(pointers, np.full(2, _CODE, np.int64), np.array([own.size, _LARGE], np.int64))
    rows = _TABLE.rows()
    _same(rows[row].tolist(), rows[first].tolist())
    _same(tuple(rows[first + 1].tolist()), tuple(_SUMMARY))
    len(_TABLE)


def one_batch_of_digests(thread: int, turn: int) -> None:
    """Add short and long messages to one batch, which fills its lanes and is hashed in between; each thread requests
    its own digests.
    """
    added = []
    for size in (7, 1000, 300_000, 64, 0, 20_000, 55, 400_000):
        message = np.random.default_rng([thread, turn, size]).integers(0, 256, size, np.uint8)
        added.append((_DIGESTS.add(message.ctypes.data, size), message))
        len(_DIGESTS)
    for number, message in added[turn % 2 :: 2]:
        _same(_DIGESTS.digests(number)["md5"], hashlib.md5(message.tobytes(), usedforsecurity=False).hexdigest())


def pairs(thread: int, turn: int) -> None:
    _same(kernels.compare_pair(_SHARED, _OTHER), _PAIR)


def copies(thread: int, turn: int) -> None:
    source = _SHARED.reshape(600, 1000)
    copy = np.empty((1000, 600), np.float32)
    kernels.copy_elements(source.T, copy)
    _same(bool((copy == source.T).all()), True)
    codes = np.arange(400_000, dtype=np.uint8)
    table = np.arange(256, dtype=np.float32)
    _same(bool((kernels.widened(codes, table) == table[codes]).all()), True)


def settings(thread: int, turn: int) -> None:
    """Change the number of threads and the instruction set while the others compute: no bit changes."""
    kernels.set_threads(1 + (thread + turn) % 4)
    kernels.use_instruction_set(_SETS[(thread + turn) % len(_SETS)])
    _same(kernels.summarise(_SHARED), _SUMMARY)
    kernels.threads()


def a_table_each(thread: int, turn: int) -> None:
    table, digests = SummaryTable(), DigestBatch(_NAMES)
    for place in range(20):
        part = _SHARED[place * 1000 : place * 1000 + 1000]
        table.add(part.ctypes.data, _CODE, part.size)
        digests.add(part.ctypes.data, part.nbytes)
    _same(len(table), 20)
    _same(digests.digests(3)["md5"], hashlib.md5(_SHARED[3000:4000].tobytes(), usedforsecurity=False).hexdigest())
    digests.clear()


_WORK: Final[tuple[Work, ...]] = (
    summaries_of_shared_memory,
    one_table,
    one_batch_of_digests,
    pairs,
    copies,
    settings,
    a_table_each,
)


def _everything_at_once(thread: int, turn: int) -> None:
    _WORK[(thread + turn) % len(_WORK)](thread, turn)


def _in_a_child(wrong: list[str]) -> None:
    """A forked process creates its own pool, without the parent's threads."""
    child: Any = os.fork()
    if child == 0:
        os._exit(0 if kernels.summarise(_SHARED) == _SUMMARY else 1)
    _, status = os.waitpid(child, 0)
    if status:
        wrong.append(f"a forked process ended with status {status}")


if __name__ == "__main__":
    sys.exit(main())
