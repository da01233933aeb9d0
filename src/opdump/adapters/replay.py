"""Runs recorded operators again: what an adapter offers for it, and which adapter knows which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from numpy.typing import NDArray

from opdump.errors import CannotReplayError
from opdump.extensions import Registry
from opdump.records import OpRecord, TensorRecord

Array = NDArray[Any]
AS_RECORDED: Final = "recorded"
"""The `dtype` of a run in which every tensor has the type that it had."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an operator gave when it was run again."""

    outputs: Mapping[int, Array]
    """By slot; floats in `dtype`, or wider."""
    dtype: str
    """The type of floats that it was run in."""


@dataclass(frozen=True, slots=True)
class Script:
    """A program that runs one operator again without opdump. `arrays` are what it reads from the npz file of its own name; it may be empty."""

    text: str
    arrays: Mapping[str, Array]


class Replayer(Protocol):
    """Runs operators of one framework again, on the CPU."""

    def draws(self, op: OpRecord) -> bool:
        """Whether the operator draws random numbers."""

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        """The outputs for these input values by slot.

        `inputs` say which argument each slot is. Floats are computed in `dtype`, for "float64" in a narrower one where the kernel has no
        such, for AS_RECORDED in the types that they had; `values` are not changed.

        Raises CannotReplayError: the kernel is not known or does not take these inputs, it draws random numbers, an argument is missing.
        """


@runtime_checkable
class SupportsScripts(Protocol):
    """A replayer that also writes programs."""

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        """A program that runs the operator in the types that it had and in float64, and prints how far both and the recorded outputs are apart.

        `title` is its first line. Raises what `run` raises.
        """


@runtime_checkable
class SupportsDefaults(Protocol):
    """A replayer that also knows what an operator does where the program left an argument out."""

    def defaults(self, op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
        """The arguments that the operator has, of those that the program may leave out, as JSON values; empty where that is not known."""


REPLAYERS: Final[Registry[Replayer]] = Registry(
    "opdump.replayers",
    {
        "aten": "opdump.adapters.torch.replay:REPLAYER",
        "ai.onnx": "opdump.adapters.onnxruntime.replay:REPLAYER",
        "ai.onnx.ml": "opdump.adapters.onnxruntime.replay:REPLAYER",
        "com.microsoft": "opdump.adapters.onnxruntime.replay:REPLAYER",
    },
)
"""By the namespace of the kernel: what stands before `::`."""


_PACKAGES: Final[Mapping[str, str]] = {
    "aten": "torch",
    **dict.fromkeys(("ai.onnx", "ai.onnx.ml", "com.microsoft"), "onnx onnxruntime"),
}
"""What is to be installed for a namespace."""


def can_replay(namespace: str = "aten") -> bool:
    """Whether operators of that namespace can be run again: its framework is installed."""
    try:
        REPLAYERS.load(namespace)
    except ImportError:
        return False
    return True


def replayer_of(op: OpRecord) -> Replayer | None:
    """Who runs operators of that framework again; None where nobody does, or the framework is not installed."""
    try:
        return required_replayer(op)
    except CannotReplayError:
        return None


def defaults_of(op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
    """What an operator does where the program left an argument out; empty where its framework is not installed or does not tell."""
    replayer: object = replayer_of(op)
    return replayer.defaults(op, inputs) if isinstance(replayer, SupportsDefaults) else {}


def required_replayer(op: OpRecord) -> Replayer:
    """The same; raises CannotReplayError, which says why, where there is none."""
    namespace, found, _ = op.kernel.partition("::")
    if not found or namespace not in REPLAYERS:
        raise CannotReplayError(_why_unknown(op, namespace if found else ""))
    try:
        return REPLAYERS.load(namespace)
    except ImportError as error:
        raise CannotReplayError(
            f"{op.kernel} is run again by its framework, which cannot be imported here ({error}); type: pip install {_PACKAGES.get(namespace, namespace)}"
        ) from error


def _why_unknown(op: OpRecord, namespace: str) -> str:
    if op.kernel.startswith("compiled"):
        return f"{op.op_name} is a whole graph that torch.compile made; capture with `opdump run --eager`, and its operators are in the dump"
    known = ", ".join(f"{name}::" for name in REPLAYERS.names())
    what = f"operators of {namespace}:: are" if namespace else f"{op.kernel or op.op_type} is"
    return f"{what} not run again here: replayers are there for {known}; a package adds others under opdump.replayers (docs/extensions.md)"
