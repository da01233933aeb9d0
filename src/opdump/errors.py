"""One class per mistake. A message says what was found, what was expected, where, and what to do next."""

from __future__ import annotations


class OpdumpError(Exception):
    """Base of every error that opdump raises on purpose."""


class ConfigError(OpdumpError):
    """A dump configuration cannot be used."""


class ExtensionError(OpdumpError):
    """A part that an installed package adds cannot be loaded."""


class DumpPathError(OpdumpError):
    """The directory to dump into cannot be written."""


class CorruptDumpError(OpdumpError):
    """A file of a dump does not hold what its kind of file must hold."""


class WrongSizeError(CorruptDumpError):
    """A file of a dump is not as long as its header says."""


class UndecodableTensorError(OpdumpError):
    """The bytes of one tensor of a dump file are not what its header says, or its values none of the element type."""


class UnknownFormatError(OpdumpError):
    """There is no conversion between two formats, or no format of that name."""


class FormatShapeError(OpdumpError):
    """A tensor's shape is none that its format can have, or does not agree with the shape wanted."""


class UnknownLayoutError(OpdumpError):
    """A directory holds no dump of a known layout."""


class NotInDumpError(OpdumpError, LookupError):
    """A dump was asked for something that it does not hold."""


class NoElementsError(OpdumpError):
    """The elements of a tensor were asked for, and the dump does not have them."""


class CannotReplayError(OpdumpError):
    """An operator of a dump cannot be run again."""


class NativeCoreMissingError(OpdumpError):
    """OPDUMP_REQUIRE_NATIVE=1 is set and the compiled kernels cannot be imported."""


class CaptureStateError(OpdumpError):
    """start, stop or step was called at a time when it has no meaning."""


class IncompleteCaptureError(OpdumpError):
    """`strict` was asked for and some operator was not captured."""


class KernelChoiceError(OpdumpError):
    """OPDUMP_ISA or OPDUMP_THREADS asks for what this machine cannot do."""


class UnsupportedDtypeError(OpdumpError):
    """Elements of this type have no summary."""


class FrameworkMissingError(OpdumpError):
    """A capture needs a framework that is not installed."""


class PackageMissingError(OpdumpError, ImportError):
    """What was asked for needs an optional package that is not installed."""


class ModelInputError(OpdumpError):
    """What a model is to be fed with does not fit it, or cannot be read."""


class ModelFileError(OpdumpError):
    """A model file is not there, or holds no model that can be read."""
