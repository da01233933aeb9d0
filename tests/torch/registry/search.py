"""Calls every operator of PyTorch's registry with and without capture, and writes the differences as JSON.

    python -m tests.torch.registry.search report.json

Arguments are guesses, and some operators crash on wrong ones. Therefore operators run in forked children: if one dies, the next child
continues with the following operator.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch

from opdump.adapters.base import Settings
from opdump.adapters.torch.adapter import ADAPTER
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from tests.torch.op_db.statistics import CheckedInMemory
from tests.torch.registry.states import GUESSES, WAYS, State, call, give_kernels, schema_of

_ELSEWHERE = {
    **dict.fromkeys(
        ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"),
        "needs a process group: see `collectives`",
    ),
    "rpc": "needs a process group",
    "profiler": "changes the profiler",
    "_test": "made to fail",
}
_AT_ONCE = 40
"""Operators per capture: beginning a capture takes longer than calling them."""
Work = Callable[[Sequence[Any], Callable[[Any], None]], None]


def names() -> list[str]:
    """The operators of this release, from all namespaces that run in one process."""
    found = [str(name) for name in torch._C._dispatch_get_all_op_names()]
    return sorted(name for name in found if name.partition("::")[0] not in _ELSEWHERE)


def in_children(items: Sequence[Any], size: int, work: Work) -> Iterator[Any]:
    """What `work` reports for `items`, `size` of them at once, in children; None for an item that killed its child.

    `work` reports ("begins", place) before each item.
    """
    pending = [range(start, min(start + size, len(items))) for start in range(0, len(items), size)]
    while pending:
        chunk = pending.pop(0)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work_in_child(writing, work, [(place, items[place]) for place in chunk])
        os.close(writing)
        begun = None
        with os.fdopen(reading) as lines:
            for line in lines:
                fact = json.loads(line)
                if fact[0] == "begins":
                    begun = fact[1]
                else:
                    yield fact
        _, status = os.waitpid(child, 0)
        if status != 0:
            if begun is None:
                raise SystemExit(f"a child ended with {status} before its first operator")
            yield ["crashes", begun, ""]
            rest = range(begun + 1, chunk.stop)
            pending[:0] = [rest] if rest else []


def _work_in_child(writing: int, work: Work, items: Sequence[Any]) -> NoReturn:
    """Run in the child, and never return: the parent's exit code must not run in the child."""
    status = 1
    try:
        with os.fdopen(writing, "w") as told:

            def tell(fact: Any) -> None:
                told.write(json.dumps(fact) + "\n")
                told.flush()

            work(items, tell)
        status = 0
    except Exception:  # noqa: BLE001  # it would propagate into the parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def find_arguments(items: Sequence[tuple[int, str]], tell: Callable[[Any], None]) -> None:
    """Report for each operator the first guess that it accepts."""
    for place, name in items:
        tell(("begins", place))
        accepted, why = None, ""
        for number, guess in enumerate(GUESSES):
            state = call(name, guess, "plain")
            if "refused" not in state:
                accepted = number
                break
            why = why or f"{state['refused']}: {state['why']}"
        tell(("accepts", place, accepted, why))


def compare(items: Sequence[tuple[int, tuple[str, int]]], tell: Callable[[Any], None]) -> None:
    """Report for each operator and each way to call it what differs under capture."""
    for start in range(0, len(items), _AT_ONCE):
        _compare_some(items[start : start + _AT_ONCE], tell)


def _compare_some(items: Sequence[tuple[int, tuple[str, int]]], tell: Callable[[Any], None]) -> None:
    plain: dict[tuple[int, str], State] = {}
    for place, (name, guess) in items:
        tell(("begins", place))
        for way in WAYS:
            plain[place, way] = call(name, GUESSES[guess], way)
    plan = DumpPlan(path=Path("unused"), saved_data="statistic")
    recorder = Recorder(plan, CheckedInMemory(), ADAPTER.reader(plan))
    with ExitStack() as stack:
        clock = stack.enter_context(ADAPTER.attach(recorder, Settings(steps="manual")))
        for place, (name, guess) in items:
            tell(("begins", place))
            ran, found = 0, {}
            for way in WAYS:
                captured = call(name, GUESSES[guess], way)
                ran += "refused" not in captured
                if different := _differences(plain[place, way], captured):
                    found[way] = different
            tell(("differs" if found else "equal", place, found, ran))
            clock.manual_step()


def _differences(plain: State, captured: State) -> str:
    """The differences between a captured and a plain run.

    How often a new result was written during its construction does not count: only `torch.ops.aten.zeros` increments that version,
    `torch.zeros` does not.
    """
    found = [
        f"{key} is {captured.get(key)}, plainly {plain.get(key)}"
        for key in {**plain, **captured}
        if plain.get(key) != captured.get(key) and not _is_new(key, plain) and key != "why"
    ]
    return "; ".join(found[:3])


def _is_new(key: str, state: State) -> bool:
    what, _, fact = key.partition(": ")
    return what.startswith("result") and fact.startswith("version") and state.get(f"{what}: memory of argument") == []


def search() -> dict[str, Any]:
    """The counts, and the operators that differ."""
    _compare_some([], print)  # the imports of a capture, once for all children
    library = give_kernels()
    operators = names()
    accepted: dict[str, int] = {}
    told: dict[str, dict[str, str]] = {"not callable": {}, "crash": {}}
    for kind, place, guess, *why in in_children(operators, 400, find_arguments):
        if kind == "crashes":
            told["crash"][operators[place]] = "the process died of the arguments that were tried"
        elif guess is None:
            told["not callable"][operators[place]] = why[0]
        else:
            accepted[operators[place]] = guess
    items = list(accepted.items())
    differing: dict[str, dict[str, str]] = {}
    counts: Counter[str] = Counter(operators=len(operators), called=0, ways=0)
    for kind, place, found, *ran in in_children(items, 200, compare):
        name = items[place][0]
        if kind == "crashes":
            told["crash"][name] = "the process died of arguments that it had taken before"
            continue
        counts["called"] += 1
        counts["called, writing into an argument"] += writes(name)
        counts["ways"] += ran[0]
        if found:
            differing[name] = found
    counts["writing into an argument"] = sum(map(writes, operators))
    counts.update({kind: len(each) for kind, each in told.items()})
    counts["differing"] = len(differing)
    library._destroy()
    return {"counts": counts, "differing": differing, **told}


def writes(name: str) -> bool:
    """Whether the schema of an operator declares that it writes into an argument."""
    aliases = (argument.alias_info for argument in schema_of(name).arguments)
    return any(alias is not None and alias.is_write for alias in aliases)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with open(sys.argv[1], "w") as report, tempfile.TemporaryDirectory() as empty:  # some operators print
        os.chdir(empty)  # some operators write files
        json.dump(search(), report)
