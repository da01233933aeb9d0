"""Examines and prepares programs that were written for Ascend devices, so that they run unchanged.

>>> facts = facts_of_script("import tensorflow as tf; session = tf.Session(config=tf.ConfigProto())")
>>> facts.asks_for_dumps, facts.is_tensorflow_1
(False, True)
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from opdump.adapters.registry import FRAMEWORKS
from opdump.interpreter.imports import after_import
from opdump.tensorflow.installation import SessionOptions, adapter_module, install_on_import

_DROP_INS: Final = ("npu_bridge", "npu_device")
_ON_JAX: Final = frozenset({"jax", "flax", "optax", "equinox", "haiku"})
_MOST_MODULES: Final = 200
_LARGEST_SOURCE: Final = 2**20
_OF_VERSION_1: Final = frozenset(
    {
        *(
            "Session",
            "InteractiveSession",
            "ConfigProto",
            "placeholder",
            "get_variable",
            "global_variables_initializer",
        ),
        *("get_default_graph", "layers", "set_random_seed", "variable_scope"),
    }
)
"""Top-level names that TensorFlow 2 does not have. A program that uses one needs TensorFlow 1."""


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """Facts from the source of a program."""

    drop_ins: tuple[str, ...]
    """The packages of Ascend's adapters that it imports."""
    names_optimizer: bool
    """Whether it mentions NpuOptimizer."""
    imports: frozenset[str]
    """Top-level packages that it imports."""
    is_tensorflow_1: bool
    """Whether it uses names of `tensorflow` that version 2 lacks."""

    @property
    def names_no_framework(self) -> bool:
        """Whether it imports no framework that the start-up hook waits for, and no package based on one."""
        return self.imports.isdisjoint({*FRAMEWORKS.names(), "keras", *_DROP_INS, *_ON_JAX})

    @property
    def framework(self) -> str:
        """The framework of its operators, by its imports; if they are inconclusive, by what is installed, PyTorch first."""
        if self.names_no_framework:
            installed = [name for name in FRAMEWORKS.names() if importlib.util.find_spec(name) is not None]
            return installed[0] if installed and "torch" not in installed else "torch"
        if "torch" in self.imports:
            return "torch"
        if self.imports & {"tensorflow", "keras", *_DROP_INS}:
            return "tensorflow"
        if self.imports & _ON_JAX:
            return "jax"
        return next((name for name in FRAMEWORKS.names() if name in self.imports), "torch")

    @property
    def asks_for_dumps(self) -> bool:
        """Whether it may request a dump itself."""
        return bool(self.drop_ins) or self.names_optimizer


def facts_of_script(source: str) -> ScriptFacts:
    """The facts of a program from its source, without running it. Source that does not parse has none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ScriptFacts((), False, frozenset(), False)
    imports: set[str] = set()
    names = {"tensorflow"}
    owners: set[str] = set()
    names_optimizer = False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                imports.update(alias.name.partition(".")[0] for alias in aliases)
                names.update(alias.asname for alias in aliases if alias.name == "tensorflow" and alias.asname)
            case ast.ImportFrom(module=str(module), level=0):
                imports.add(module.partition(".")[0])
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if name in _OF_VERSION_1:
                owners.add(owner)
            case ast.Constant(value="NpuOptimizer"):
                names_optimizer = True
    return ScriptFacts(
        tuple(name for name in _DROP_INS if name in imports),
        names_optimizer,
        frozenset(imports),
        "tensorflow" in imports and not names.isdisjoint(owners),
    )


def facts_of_program(source: str, directory: str | None) -> ScriptFacts:
    """The facts of a script. If it imports no framework itself, the modules beside it in `directory` are examined, too."""
    facts = facts_of_script(source)
    if directory is None or not facts.names_no_framework:
        return facts
    seen: set[str] = set()
    waiting = set(facts.imports)
    while waiting and len(seen) < _MOST_MODULES:
        name = waiting.pop()
        seen.add(name)
        for file in (Path(directory, f"{name}.py"), Path(directory, name, "__init__.py")):
            with suppress(OSError, SyntaxError, ValueError):
                if file.stat().st_size <= _LARGEST_SOURCE:
                    with tokenize.open(file) as module:
                        found = facts_of_script(module.read()).imports
                    facts = replace(facts, imports=facts.imports | found)
                    waiting |= found - seen
        if not facts.names_no_framework:
            break
    return facts


@contextmanager
def prepared_for(facts: ScriptFacts, recorded: SessionOptions | None = None) -> Iterator[None]:
    """While the block runs, provide what a program that requests dumps needs: the drop-in packages, names, intercepted sessions.

    If `recorded` is given, its sessions are dumped as they request; the caller ends the recordings (`finish`).
    """
    if not facts.asks_for_dumps:
        yield
        return
    _prepare_on_import(facts)
    for name in facts.drop_ins:
        importlib.import_module(f"opdump.{name}").install()
    if recorded is not None:
        install_on_import(recorded)
    try:
        yield
    finally:
        for name in facts.drop_ins:
            importlib.import_module(f"opdump.{name}").uninstall()


def prepare_main() -> None:
    """Provide the names that `opdump run` would provide, for the program that runs in this process."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None or not os.path.isfile(file):
        return
    with tokenize.open(file) as source:
        facts = facts_of_script(source.read())
    if not facts.asks_for_dumps:
        return
    _prepare_on_import(facts)


def _prepare_on_import(facts: ScriptFacts) -> None:
    if "tensorflow" in sys.modules:
        _prepare(facts)
    else:
        after_import("tensorflow", lambda _: _prepare(facts))


def _prepare(facts: ScriptFacts) -> None:
    names = adapter_module("estimator.v1_names")
    names.give_v1_names()
    if facts.is_tensorflow_1:
        names.use_version_1()
