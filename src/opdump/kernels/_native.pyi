# The compiled twin of reference.py, pair_reference.py, reorder.py and batch_summarizer.py: native/bind.cpp. Its functions do what those of the same name do there.
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def summarise_pointer(pointer: int, code: int, count: int, rows: NDArray[np.float64], row: int) -> None: ...
def summarise_strided_pointer(
    pointer: int,
    code: int,
    shape: tuple[int, ...],
    strides_in_elements: tuple[int, ...],
    rows: NDArray[np.float64],
    row: int,
) -> None: ...

class SummaryTable:
    def __init__(self, capacity: int = 256) -> None: ...
    def add(self, pointer: int, code: int, count: int) -> int: ...
    def add_strided(
        self, pointer: int, code: int, shape: tuple[int, ...], strides_in_elements: tuple[int, ...]
    ) -> int: ...
    def add_all(self, pointers: NDArray[np.int64], codes: NDArray[np.int64], counts: NDArray[np.int64]) -> int: ...
    def rows(self) -> NDArray[np.float64]: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...

class BatchSummarizer:
    def __init__(self, table: SummaryTable, prototype: Any, classes: tuple[type, ...]) -> None: ...
    def take_all(
        self,
        op: Any,
        io: str,
        lives: Iterable[Sequence[Any]],
        entries: list[Any],
        other: Callable[[Any, Any], Any],
    ) -> None: ...

def pair_totals(
    first: int,
    first_code: int,
    first_strides: Sequence[int],
    second: int,
    second_code: int,
    second_strides: Sequence[int],
    shape: Sequence[int],
    atol: float,
    rtol: float,
    with_argmax: bool,
) -> tuple[list[float], list[float], list[int], list[int], list[tuple[int, int, float]]]: ...
def copy_strided_pointer(
    source: int,
    destination: int,
    item: int,
    shape: Sequence[int],
    source_strides: Sequence[int],
    destination_strides: Sequence[int],
) -> None: ...
def widen_codes(codes: int, count: int, table: int, out: int) -> None: ...
def instruction_set() -> str: ...
def instruction_sets() -> list[str]: ...
def use_instruction_set(name: str) -> bool: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...
