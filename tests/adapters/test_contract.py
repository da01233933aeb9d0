"""The adapter contract runs the tests that match an adapter's abilities, and no others."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import numpy as np

from opdump.adapters.base import Adapter
from opdump.plan import Captures
from opdump.testing import AdapterTests
from tests.adapters.fake_adapter import FakeAdapter


class _Small(AdapterTests):
    """An adapter with neither views nor in-place operators, which serves one mode."""

    modes: ClassVar[tuple[Captures, ...]] = ("data",)

    def adapter(self) -> Adapter:
        return FakeAdapter()

    def tensor(self, array: Any) -> Any:
        return array

    def array(self, tensor: Any) -> Any:
        return tensor

    def multiply(self, one: Any, other: Any) -> Any:
        return np.multiply(one, other)


class _WithViews(_Small):
    modes = ("data", "overflow")

    def view(self, tensor: Any) -> Any:
        return tensor.reshape(-1)


def _left_out(tests: type[AdapterTests]) -> set[str]:
    return {name for name in dir(AdapterTests) if name.startswith("test_") and getattr(tests, name) is None}


def test_tests_of_what_an_adapter_lacks_are_left_out() -> None:
    assert _left_out(_Small) == {
        "test_an_inplace_operator_keeps_its_true_input",
        "test_a_view_is_listed_and_leaves_no_data",
        "test_overflow_mode_files_the_operator_that_overflows_alone",
        "test_exception_mode_files_what_the_operator_that_fails_had_read",
    }
    assert _left_out(_WithViews) == {
        "test_an_inplace_operator_keeps_its_true_input",
        "test_exception_mode_files_what_the_operator_that_fails_had_read",
    }


def test_contracts_are_imported_without_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import opdump.testing; print(len(opdump.testing.__all__))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
