"""The dialects of configurations, by name. Installed packages add further ones (group `opdump.dialects`).

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
    """The words of a dialect for the things that messages mention, so that a message names keys of the user's file."""

    file: str
    """The name of such a file."""
    article: str = "a"
    path: str
    steps: str
    operators: str
    """The key that selects operators by name."""
    list_key: str
    """The place of a name in the list of models; `{}` is the key within an entry."""
    marked: str
    """How to enable marks in this dialect, or how it selects operators instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRead:
    """The options for reading a file."""

    environ: Mapping[str, str]
    strict: bool = False
    """Treat an unknown key as an error."""
    program_directory: str | os.PathLike[str] | None = None
    """The base of a relative directory."""
    dialect_version: Literal["seed", "current"] = "seed"
    """Only for acl.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of configuration: how to recognise a file of it, and how to read it."""

    words: DialectWords
    signs: tuple[str, ...]
    """Keys at the top of a file, any of which identifies this dialect."""
    load: Callable[[Any, HowToRead, Mapping[str, Any]], Any]
    """Returns the DumpPlan of the file at a path. The mapping contains keys of the file or fields of the plan, which override the
    file. The plan's `dialect` is the name in the registry. Raises ConfigError.
    """
    starting_file: Callable[[Path | None], str]
    """The text of a starting file, which dumps into a directory."""
    directory_must_exist: bool = False
    """Whether that directory must exist before a run."""
    files_api_calls: bool = False
    """Whether operators that run outside of any model are recorded under the name of the call."""
    names_models: bool = True
    """Whether the list of operators names models, too, rather than only operators."""
    rank_of: Callable[[Mapping[str, str]], int] | None = None
    """Returns the number of a process in directories and records, from the environment; None if a variable of `LAUNCHERS` contains
    it. Raises ConfigError for a value that is not a number.
    """


DIALECTS: Final[Registry[Dialect]] = Registry(
    "opdump.dialects",
    {
        "acl": "opdump.configs.acl_plan:DIALECT",
        "mindspore": "opdump.configs.mindspore:DIALECT",
        "tensorflow": "opdump.configs.tensorflow:DIALECT",
    },
)


# The variables for the rank of a process and for the number of ranks: of torchrun, Open MPI, and MPICH or Intel MPI.
LAUNCHERS: Final = {"RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE"}


def rank_variables(environ: Mapping[str, str]) -> tuple[str, str]:
    """The variables for rank and number of ranks that a launcher has set; those of torchrun if no launcher has set any."""
    return next((each for each in LAUNCHERS.items() if environ.get(each[0])), ("RANK", "WORLD_SIZE"))


def words_of(dialect: str) -> DialectWords:
    """The words of a dialect, by the name in `DumpPlan.dialect`."""
    return DIALECTS.load(dialect).words
