"""What each kind of configuration calls the things that messages speak of: a message names keys of the file that the user wrote.

>>> words_of("acl").steps
'dump_step'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectWords:
    """Keys of one dialect."""

    file: str
    """What such a file is called."""
    path: str
    steps: str
    operators: str
    """The key that names single operators."""
    list_key: str
    """Where a name in the list of models stands; `{}` is the key within an entry."""
    marked: str
    """What makes a capture look at marks, or what chooses operators where there are none."""


_WORDS: Final[Mapping[str, DialectWords]] = MappingProxyType(
    {
        "mindspore": DialectWords(
            file="data_dump.json",
            path="path",
            steps="iteration",
            operators="kernels",
            list_key="models: {}",
            marked='write "dump_mode": 2 to dump what is marked',
        ),
        "acl": DialectWords(
            file="acl.json",
            path="dump_path",
            steps="dump_step",
            operators="dump_list",
            list_key="dump_list.{}",
            marked='an acl.json chooses by dump_list, and a data_dump.json with "dump_mode": 2 by marks',
        ),
        "tensorflow": DialectWords(
            file="npu_dump.json",
            path="dump_path",
            steps="dump_step",
            operators="dump_layer",
            list_key="dump_layer",
            marked="programs of TensorFlow choose by dump_layer",
        ),
    }
)


def words_of(dialect: str) -> DialectWords:
    """The words of a dialect, as `DumpPlan.dialect` names it."""
    return _WORDS[dialect]
