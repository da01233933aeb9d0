"""One class for each mistake. A message names what was found, what was expected, where, and what to do next."""

from __future__ import annotations


class OpdumpError(Exception):
    """Base class of every error that opdump raises on purpose."""


class ConfigError(OpdumpError):
    """A dump configuration cannot be used."""


class ExtensionError(OpdumpError):
    """An extension of an installed package cannot be loaded."""


class DumpPathError(OpdumpError):
    """The dump directory, or a file in it, cannot be written."""


class CorruptDumpError(OpdumpError):
    """The content of a file in a dump does not match its file type."""


class WrongSizeError(CorruptDumpError):
    """A file in a dump does not have the length given in its header."""


class UndecodableTensorError(OpdumpError):
    """The bytes of a tensor in a dump file do not match the header, or a value is not valid for the element type."""


class UnknownFormatError(OpdumpError):
    """There is no format of this name, or no conversion between two formats."""


class FormatShapeError(OpdumpError):
    """The shape of a tensor is impossible in its format, or does not agree with the requested shape."""


class UnknownLayoutError(OpdumpError):
    """A directory does not contain a dump of a known layout."""


class NotInDumpError(OpdumpError, LookupError):
    """The requested item is not in the dump."""


class NoElementsError(OpdumpError):
    """The elements of a tensor were requested and are not in the dump."""


class CannotReplayError(OpdumpError):
    """An operator of a dump cannot be run again."""


class NativeCoreMissingError(OpdumpError):
    """OPDUMP_REQUIRE_NATIVE=1 is set and the compiled kernels cannot be imported."""


class CaptureStateError(OpdumpError):
    """start, stop or step was called in the wrong state."""


class IncompleteCaptureError(OpdumpError):
    """`strict` was requested and some operator was not captured."""


class KernelChoiceError(OpdumpError):
    """OPDUMP_ISA or OPDUMP_THREADS requests something that this machine cannot do."""


class UnsupportedDtypeError(OpdumpError):
    """Tensors of this element type cannot be summarised."""


class FrameworkMissingError(OpdumpError):
    """A capture needs a framework that is not installed."""


class PackageMissingError(OpdumpError, ImportError):
    """An optional package is needed and not installed."""


class ModelInputError(OpdumpError):
    """An input for a model does not fit it, or cannot be read."""


class ModelFileError(OpdumpError):
    """A model file does not exist, or does not contain a readable model."""
