"""Functions that are called when a program imports a module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from opdump.tensorflow.on_import import after_import, forget_import

NAME = "opdump_test_late_module"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / f"{NAME}.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield NAME
    forget_import(NAME)
    sys.modules.pop(NAME, None)


def test_functions_get_the_module_when_it_is_there_in_their_order(module: str) -> None:
    seen: list[object] = []

    def first(found: ModuleType) -> None:
        seen.append(found.value)

    after_import(module, first)
    after_import(module, lambda found: seen.append(found.__name__))
    assert seen == []
    imported = importlib.import_module(module)
    assert seen == [7, module]
    assert imported.__spec__ is not None
    assert type(imported.__spec__.loader).__name__ == "SourceFileLoader", "the module keeps its own loader"


def test_nobody_is_called_twice_and_nothing_stays(module: str) -> None:
    calls: list[ModuleType] = []
    before = list(sys.meta_path)
    after_import(module, calls.append)
    importlib.import_module(module)
    assert sys.meta_path == before
    sys.modules.pop(module)
    importlib.import_module(module)
    assert len(calls) == 1


def test_forgotten_functions_are_not_called(module: str) -> None:
    calls: list[ModuleType] = []
    after_import(module, calls.append)
    forget_import(module)
    importlib.import_module(module)
    assert calls == []


def test_an_error_of_a_function_comes_out_of_the_import(module: str) -> None:
    def refuse(_: ModuleType) -> None:
        raise RuntimeError("no")

    after_import(module, refuse)
    with pytest.raises(RuntimeError, match="no"):
        importlib.import_module(module)


def test_a_module_that_is_not_there_stays_so() -> None:
    after_import("opdump_test_nowhere", lambda _: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("opdump_test_nowhere")
    finally:
        forget_import("opdump_test_nowhere")
