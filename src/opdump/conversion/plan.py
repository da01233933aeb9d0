"""The plan of a conversion, and the result for each file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.records import IO

FileType = Literal["npy", "bin", "pt", "txt"]
Layout = Literal["dumps", "mindspore"]
"""`dumps`: every file in the directory of its dump, named after it. `mindspore`: the tree of a synchronous dump."""


class ConversionError(OpdumpError):
    """A conversion cannot begin, or a file cannot be converted as requested."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """How every file is converted.

    `format` is the target format, empty for the format of the device; `shape` then replaces the original shape in the file. `io`
    and `slot` select one tensor of each file; None selects all.
    """

    file_type: FileType = "npy"
    format: str = ""
    shape: tuple[int, ...] | None = None
    io: IO | None = None
    slot: int = 0
    layout: Layout = "dumps"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to convert: its path, the output subdirectory of its parts, and the stem of their names."""

    path: str
    directory: str
    """Relative to the output directory; empty for the output directory itself."""
    name: str
    """The true name, from mapping.csv if the name on disk is digits."""
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
    """The result for one file. `outputs` are relative to the output directory."""

    path: str
    outputs: list[str] = field(default_factory=list)
    tensors: int = 0
    bytes: int = 0
    failures: list[Failure] = field(default_factory=list)
    shortened: list[tuple[str, str, str]] = field(default_factory=list)
    """Directory, name on disk, true name of each output whose name was too long."""
    samples: list[str] = field(default_factory=list)
    """The `outputs` with only the first elements of a larger tensor, because the dump has no more."""
    fatal: bool = False
    """Whether the disk is full or cannot be written, so that no other file can succeed either."""

    def fail(self, error: Exception, tensor: str = "") -> None:
        self.failures.append(failure(self.path, error, tensor))


def failure(path: str, error: Exception, tensor: str = "") -> Failure:
    """The `error` as a row of the summary, without the path and the tensor, which have columns of their own."""
    reason = str(error) or type(error).__name__
    for known in (path, tensor):
        if known:
            reason = reason.removeprefix(f"{known}: ")
    return Failure(path, tensor, type(error).__name__, reason)
