"""The dialects of configurations, by name: one object for each, which installed packages add to (group `opdump.dialects`).

>>> words_of("acl").steps
'dump_step'
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from opdump.extensions import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectWords:
    """What a dialect calls the things that messages speak of: a message names keys of the file that the user wrote."""

    file: str
    """What such a file is called."""
    article: str = "a"
    path: str
    steps: str
    operators: str
    """The key that names single operators."""
    list_key: str
    """Where a name in the list of models stands; `{}` is the key within an entry."""
    marked: str
    """What makes a capture look at marks, or what chooses operators where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRead:
    """What is asked for beside a file."""

    environ: Mapping[str, str]
    strict: bool = False
    """An unknown key is an error."""
    program_directory: str | os.PathLike[str] | None = None
    """What a relative directory lies under."""
    dialect_version: Literal["seed", "current"] = "seed"
    """Of acl.json alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of configuration: how a file of it is told from others, and read."""

    words: DialectWords
    signs: tuple[str, ...]
    """Keys at the top of a file, any of which tells that it is written in this dialect."""
    load: Callable[[Any, HowToRead, Mapping[str, Any]], Any]
    """Gives the DumpPlan of the file at a path. The mapping has keys of the file or fields of the plan, which replace what the file says.
    The plan's `dialect` is the name in the registry. Raises ConfigError."""
    starting_file: Callable[[Path | None], str]
    """The text of a first file, which dumps into a directory."""
    directory_must_exist: bool = False
    """Whether that directory has to be there before a run."""
    files_api_calls: bool = False
    """Whether operators that run outside of any model are filed by the name of the call."""
    names_models: bool = True
    """Whether what lists operators names models too, and not operators alone."""
    rank_of: Callable[[Mapping[str, str]], int] | None = None
    """The number of a process in directories and records, as the environment has it; None where RANK says it, which torchrun sets.
    Raises ConfigError for what is no number."""


DIALECTS: Final[Registry[Dialect]] = Registry(
    "opdump.dialects",
    {
        "acl": "opdump.configs.acl.dialect:DIALECT",
        "mindspore": "opdump.configs.mindspore.dialect:DIALECT",
        "tensorflow": "opdump.configs.tensorflow.dialect:DIALECT",
    },
)


def words_of(dialect: str) -> DialectWords:
    """The words of a dialect, as `DumpPlan.dialect` names it."""
    return DIALECTS.load(dialect).words
