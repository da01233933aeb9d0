"""The adapter contract, for an adapter without a framework; which framework is chosen."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

from opdump.adapters.base import Adapter
from opdump.capturing.processes import chosen_framework
from opdump.errors import ConfigError
from opdump.plan import Captures
from opdump.testing import AdapterTests
from opdump.testing.adapter_tests import Array
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
        "test_a_view_is_listed_without_data",
        "test_overflow_mode_records_only_the_operator_that_overflows",
        "test_exception_mode_records_the_inputs_of_the_operator_that_fails",
    }
    assert _left_out(_WithViews) == {
        "test_an_inplace_operator_keeps_its_true_input",
        "test_exception_mode_records_the_inputs_of_the_operator_that_fails",
    }


def test_contracts_are_imported_without_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import opdump.testing; print(len(opdump.testing.__all__))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class TestFakeAdapter(AdapterTests):
    """An adapter without a framework passes the contract, so the contract needs nothing that only PyTorch has."""

    def adapter(self) -> Adapter:
        self._fake = FakeAdapter()
        return self._fake

    def tensor(self, array: Array) -> Any:
        return array

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def multiply(self, one: Any, other: Any) -> Any:
        return self._running().run("Mul", np.multiply, one, other)

    def add_in_place(self, tensor: Any, other: Any) -> None:
        self._running().run("AssignAdd", np.add, tensor, other, into=tensor)

    def view(self, tensor: Any) -> Any:
        return self._running().run("Reshape", np.ravel, tensor, skip="view")

    def _running(self) -> FakeAdapter:
        return getattr(self, "_fake", None) or FakeAdapter()


@pytest.mark.parametrize(
    ("imported", "expected"),
    [((), "torch"), (("torch",), "torch"), (("tensorflow", "numpy"), "tensorflow"), (("tensorflow", "torch"), "torch")],
)
def test_the_imported_framework_is_chosen(imported: tuple[str, ...], expected: str) -> None:
    assert chosen_framework("auto", imported) == expected


def test_where_both_are_imported_a_warning_says_how_to_choose(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="opdump"):
        chosen_framework("auto", ("tensorflow", "torch"))
        chosen_framework("tensorflow", ("tensorflow", "torch"))
    assert [record.getMessage() for record in caplog.records] == [
        'both torch and tensorflow are imported; torch is captured. For the other: opdump.capture(..., framework="tensorflow")'
    ]


def test_what_is_asked_for_is_chosen() -> None:
    assert chosen_framework("tensorflow", ("torch",)) == "tensorflow"


def test_an_unknown_framework_is_an_error_that_names_the_known_ones() -> None:
    known = '"auto", "torch", "tensorflow", "jax", "mindspore" or "onnxruntime"'
    with pytest.raises(ConfigError, match=f"framework is 'caffe', expected {known}"):
        chosen_framework("caffe", ())
