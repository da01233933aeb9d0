"""Run a fixed sample of the long suites: `pytest --sampled` runs the sample, plain `pytest` runs every test.

    @pytest.mark.sampled(4)  # one in four of the cases; sampled(4, each="kind"): one in four of each kind
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("size", SIZES)
    def test_a_file_is_read(kind: str, size: int) -> None: ...

    @pytest.mark.long  # never in the sample: it takes too long

`FILES` lists files whose tests start programs or compare many dumps; one in N of their tests runs. The cases with the
smallest digests of their names are kept, and at least one. The end of a run lists what was sampled.

A test with generated examples (Hypothesis) runs a quarter of them, the same ones each time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import pytest
from hypothesis import settings

FILES: Final[Mapping[str, int]] = {
    "tests/startup/": 6,
    "tests/cli/test_infer": 3,
    "tests/cli/test_run": 6,
    "tests/cli/test_tracebacks": 4,
    "tests/comparison/test_across_frameworks": 3,
    "tests/comparison/test_compiled_graphs": 2,
    "tests/comparison/test_noise_of_training": 3,
    "tests/comparison/test_not_finite": 3,
    "tests/comparison/test_rank_layouts": 3,
    "tests/comparison/test_unexplained": 3,
    "tests/comparison/test_written_outside": 3,
    "tests/conversion/test_memory": 5,
    "tests/jax/capture/test_columns": 3,
    "tests/jax/capture/test_comparisons": 3,
    "tests/jax/capture/test_op_types": 3,
    "tests/jax/capture/test_pieces": 3,
    "tests/jax/capture/test_steps": 3,
    "tests/jax/capture/test_trainings": 3,
    "tests/mindspore/capture/test_compared": 3,
    "tests/mindspore/capture/test_graphs": 3,
    "tests/parity/parity_mindspore_run": 3,
    "tests/project/test_extension": 4,
    "tests/tensorflow/functions/test_compare": 3,
    "tests/tensorflow/functions/test_tracebacks": 3,
    "tests/torch/test_forced_programs": 12,
    "tests/torch/": 6,
}
"""One in N tests of a file runs, by the start of its path."""
_EXAMPLES = 4
"""One in N generated examples runs."""
_SETTINGS = "_hypothesis_internal_use_settings"
_ASKED = "opdump_settings_asked"
_KEY = "sampled"
"""The key under which a pytest-xdist worker reports what it deselected."""


class Sampling:
    """Pytest plugin that keeps the sample."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}
        """Per sampled test or file: the number of cases that run and the number that exist."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the cases outside the sample."""
        groups: dict[str, list[pytest.Item]] = {}
        for item in items:
            test = item.nodeid.partition("[")[0]
            if item.get_closest_marker("sampled") is not None or item.get_closest_marker("long") is not None:
                groups.setdefault(test, []).append(item)
            elif _one_in(item.nodeid) > 1:
                groups.setdefault(test.partition("::")[0], []).append(item)
            _generate_less(item)
        left_out: set[pytest.Item] = set()
        for name, cases in groups.items():
            mark = cases[0].get_closest_marker("sampled")
            if "::" not in name:
                kept = share(cases, _one_in(name))
            else:
                kept = set() if mark is None else chosen(cases, *mark.args, **mark.kwargs)
            left_out |= set(cases) - kept
            self._told[name] = len(kept), len(cases)
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
        if hasattr(config, "workeroutput"):
            config.workeroutput[_KEY] = self._told

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Merge a worker's counts; every worker deselects the same cases."""
        self._told |= getattr(node, "workeroutput", {}).get(_KEY, {})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List what was sampled."""
        if self._told:
            terminalreporter.section("sampled; make test-all runs them all")
            for name, (kept, count) in sorted(self._told.items()):
                terminalreporter.line(f"{kept} of {count}: {name}")


def chosen(cases: Sequence[pytest.Item], one_in: int, *, each: str | None = None) -> set[pytest.Item]:
    """One in `one_in` of the cases, or of the cases per value of the parameter `each`, by the digests of their names."""
    kinds: dict[object, list[pytest.Item]] = {}
    for case in cases:
        assert isinstance(case, pytest.Function), case
        kinds.setdefault(None if each is None else case.callspec.params[each], []).append(case)
    return set(chain.from_iterable(share(kind, one_in) for kind in kinds.values()))


def share(cases: Iterable[pytest.Item], one_in: int) -> set[pytest.Item]:
    """One in `one_in` of the cases, and at least one."""
    ordered = sorted(cases, key=_digest)
    return set(ordered[: math.ceil(len(ordered) / one_in)])


def _generate_less(item: pytest.Item) -> None:
    test = getattr(item, "obj", None)
    if getattr(test, "is_hypothesis_test", False):
        # Hypothesis has no public way to change the settings of a decorated test. Cases of a test share it.
        attributes = vars(test)
        asked = attributes.setdefault(_ASKED, attributes.get(_SETTINGS) or settings())
        attributes[_SETTINGS] = settings(asked, max_examples=math.ceil(asked.max_examples / _EXAMPLES))


def _one_in(name: str) -> int:
    return next((one_in for begin, one_in in FILES.items() if name.startswith(begin)), 1)


def _digest(case: pytest.Item) -> bytes:
    return hashlib.sha256(case.nodeid.encode()).digest()
