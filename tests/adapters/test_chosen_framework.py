from __future__ import annotations

import logging

import pytest

from opdump.capturing.processes import chosen_framework
from opdump.errors import ConfigError


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
    with pytest.raises(
        ConfigError, match='framework is \'caffe\', expected "auto", "torch", "tensorflow", "jax" or "mindspore"'
    ):
        chosen_framework("caffe", ())
