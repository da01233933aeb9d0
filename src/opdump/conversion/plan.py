"""The plan of a conversion, and the result for each file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.records import IO

FileType = Literal["npy", "bin", "pt", "txt"]
Layout = Literal["dumps", "mindspore"]
"""`dumps`: every file where its dump was, named after it. `mindspore`: the tree of a synchronous dump."""


class ConversionError(OpdumpError):
    """A conversion cannot begin, or a file cannot become what was asked for."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What to make of every file.

    `format` is the format wanted, empty for that of the device; `shape` then replaces the shape that the file gives as the
    original one. `io` and `slot` choose one tensor of each file; None for all.
    """

    file_type: FileType = "npy"
    format: str = ""
    shape: tuple[int, ...] | None = None
    io: IO | None = None
    slot: int = 0
    layout: Layout = "dumps"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to convert: where it is, where below the output directory its parts go, and what they are named after."""

    path: str
    directory: str
    """Relative to the output directory; empty for itself."""
    name: str
    """The true name, which mapping.csv has where the name on disk is digits."""
    size: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A file, or one tensor of it, that could not be converted. `error` is the class of the error."""

    path: str
    tensor: str
    """`output:0`; empty for the whole file."""
    error: str
    reason: str


@dataclass(slots=True)
class FileResult:
    """What became of a file. `outputs` are relative to the output directory."""

    path: str
    outputs: list[str] = field(default_factory=list)
    tensors: int = 0
    bytes: int = 0
    failures: list[Failure] = field(default_factory=list)
    shortened: list[tuple[str, str, str]] = field(default_factory=list)
    """Directory, name on disk, true name of each output whose name was too long."""
    samples: list[str] = field(default_factory=list)
    """Those of `outputs` with the first elements of a larger tensor, which is all that the dump has of it."""
    fatal: bool = False
    """Whether the disk is full or cannot be written, so that no other file can succeed either."""

    def fail(self, error: Exception, tensor: str = "") -> None:
        self.failures.append(failure(self.path, error, tensor))


def failure(path: str, error: Exception, tensor: str = "") -> Failure:
    """`error` as a line of the summary: its text does not repeat the path and the tensor that stand beside it."""
    reason = str(error) or type(error).__name__
    for known in (path, tensor):
        if known:
            reason = reason.removeprefix(f"{known}: ")
    return Failure(path, tensor, type(error).__name__, reason)
