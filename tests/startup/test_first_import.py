"""Functions that wait for a program to import a module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from opdump.interpreter.imports import after_import, forget_import, functions_waiting, stand_down, wait_for

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


def test_no_callback_is_called_twice_or_kept(module: str) -> None:
    calls: list[ModuleType] = []
    before = list(sys.meta_path)
    after_import(module, calls.append)
    importlib.import_module(module)
    assert sys.meta_path == before
    sys.modules.pop(module)
    importlib.import_module(module)
    assert len(calls) == 1


def test_the_import_runs_inside_of_what_was_given_and_leaves_it_when_it_fails(module: str, tmp_path: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def inside() -> Iterator[None]:
        seen.append("in")
        try:
            yield
        finally:
            seen.append("out")

    after_import(module, lambda _: seen.append("there"), inside=inside)
    (tmp_path / f"{NAME}.py").write_text("raise OSError('no')\n")
    with pytest.raises(OSError, match="no"):
        importlib.import_module(module)
    assert seen == ["in", "out"]
    (tmp_path / f"{NAME}.py").write_text("value = 8\n")
    importlib.import_module(module)
    assert seen == ["in", "out", "in", "out", "there"]


def test_one_function_is_taken_back_and_the_other_stays(module: str) -> None:
    calls: list[str] = []
    forget = after_import(module, lambda _: calls.append("first"))
    after_import(module, lambda _: calls.append("second"))
    forget()
    importlib.import_module(module)
    forget()
    assert calls == ["second"]


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


def test_a_missing_module_stays_missing() -> None:
    after_import("opdump_test_nowhere", lambda _: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("opdump_test_nowhere")
    finally:
        forget_import("opdump_test_nowhere")


def test_a_callback_for_one_of_several_modules_is_called_around_the_import_until_it_is_removed(module: str) -> None:
    told: list[str] = []
    after_import(module, lambda found: told.append(f"function {found.value}"))
    wait_for(
        (module, "another"), before=lambda name: told.append(f"before {name}"), after=lambda name: told.append("after")
    )
    importlib.import_module(module)
    assert sorted(told) == sorted([f"before {module}", "function 7", "after"])
    assert told[0] == f"before {module}"
    told.clear()
    stand_down()
    sys.modules.pop(module)
    importlib.import_module(module)
    assert told == []


def test_to_stand_down_leaves_the_functions_of_others_waiting(module: str) -> None:
    after_import(module, lambda _: None)
    wait_for((module,), before=lambda _: None, after=lambda _: None)
    stand_down()
    assert functions_waiting(module) == 1


def test_a_callback_that_is_removed_while_the_module_is_imported_is_not_called(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").write_text(
        f"from opdump.interpreter.imports import forget_import\nforget_import({NAME!r})\n"
    )
    calls: list[ModuleType] = []
    after_import(module, calls.append)
    importlib.import_module(module)
    assert calls == []
