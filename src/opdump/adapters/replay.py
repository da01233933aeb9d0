"""Runs recorded operators again: the interface of replayers, and the replayer for each kernel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from numpy.typing import NDArray

from opdump.errors import CannotReplayError
from opdump.extensions import Registry
from opdump.records import OpRecord, TensorRecord

Array = NDArray[Any]
AS_RECORDED: Final = "recorded"
"""The `dtype` of a run in which every tensor has its recorded type."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The results of an operator that was run again."""

    outputs: Mapping[int, Array]
    """By slot; floats have `dtype` or a wider type."""
    dtype: str
    """The type of floats in the run."""


@dataclass(frozen=True, slots=True)
class Script:
    """A program that runs one operator again without opdump. `arrays` is the content of the npz file of the same name, and may be empty."""

    text: str
    arrays: Mapping[str, Array]


_DISTANCES: Final = """
now, exact = run(None), run({exact!r})
for slot, name in {types}.items():
    for when, given in (("recorded", data[f"output_{{slot}}"]), ("now", now[slot])):
        one, other = (np.asarray(each).astype("complex128" if "complex" in name else "float64") for each in (given, exact[slot]))
        apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, np.abs(one - other)).max(initial=0)
        print(f"output {{slot}} {{when}}, {{name}}: {{apart:.6g}} from {exact}, its largest element is {{np.nanmax(np.abs(other), initial=0):.6g}}")
"""


def script_with_distances(
    text: str,
    given: Mapping[int, Array],
    types: Mapping[int, str],
    recorded: Mapping[int, Array],
    exact: str = "float64",
) -> Script:
    """A program that also prints the distances of the recorded and the new outputs from those in `exact`.

    `text` loads the npz file as `data` and defines a function `run(floating)` that returns the outputs. `given` are its inputs (`input_SLOT` in the
    file), `recorded` the recorded outputs (`output_SLOT`) and `types` their element types.
    """
    arrays = {f"input_{slot}": value for slot, value in given.items()}
    arrays |= {f"output_{slot}": value for slot, value in recorded.items()}
    return Script(text + _DISTANCES.format(types=dict(types), exact=exact), arrays)


def as_python(value: Any, special: Callable[[Any], str | None]) -> str:
    """A value as text of Python. `special` returns the text of a framework's object, and None for other values."""
    own = special(value)
    if own is not None:
        return own
    if isinstance(value, tuple | list):
        written = "".join(f"{as_python(each, special)}, " for each in value)
        return f"[{written}]" if isinstance(value, list) else f"({written})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


class Replayer(ABC):
    """Runs operators of one framework again, on the CPU. An adapter implements `draws` and `run`; the other methods are optional."""

    @abstractmethod
    def draws(self, op: OpRecord) -> bool:
        """Whether the operator draws random numbers."""

    @abstractmethod
    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        """The outputs for these input values; both are by slot.

        `inputs` name the argument of each slot. Floats are computed in `dtype`, with AS_RECORDED in their recorded types. If the kernel does
        not support float64, a narrower type is used instead. `values` are not changed.

        Raises CannotReplayError if the kernel is unknown, does not take these inputs or draws random numbers, or an argument is missing.
        """

    def defaults(self, op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
        """The effective values of the operator's optional arguments, as JSON values; empty if unknown."""
        return {}

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        """A program that runs the operator in its recorded types and in float64, and prints the distances to the recorded outputs.

        `title` is its first line. Raises the errors of `run`, and CannotReplayError if the replayer writes no programs.
        """
        raise CannotReplayError(f"cannot write a program that runs {op.kernel}: its replayer does not support --emit")


REPLAYERS: Final[Registry[Replayer]] = Registry(
    "opdump.replayers",
    {
        "aten": "opdump.adapters.torch.replay:REPLAYER",
        "ai.onnx": "opdump.adapters.onnxruntime.replay:REPLAYER",
        "ai.onnx.ml": "opdump.adapters.onnxruntime.replay:REPLAYER",
        "com.microsoft": "opdump.adapters.onnxruntime.replay:REPLAYER",
        **dict.fromkeys(("lax", "jnp"), "opdump.adapters.jax.replay:REPLAYER"),
        "tf": "opdump.adapters.tensorflow.replay:REPLAYER",
        "mindspore": "opdump.adapters.mindspore.replay:REPLAYER",
    },
)
"""By the namespace of the kernel: the part before `::`."""


_PACKAGES: Final[Mapping[str, str]] = {
    "aten": "torch",
    "tf": "tensorflow",
    "mindspore": "mindspore",
    **dict.fromkeys(("ai.onnx", "ai.onnx.ml", "com.microsoft"), "onnx onnxruntime"),
    **dict.fromkeys(("lax", "jnp"), "jax"),
}
"""The packages that a namespace needs."""


def missing_packages(kernels: Iterable[str]) -> list[str]:
    """The packages to install so that these kernels can be run again, without those that are installed."""
    needed = " ".join(_PACKAGES.get(kernel.partition("::")[0], "") for kernel in kernels)
    return [package for package in dict.fromkeys(needed.split()) if find_spec(package) is None]


def replayer_of(op: OpRecord) -> Replayer | None:
    """The replayer for an operator; None if there is none, or its framework is not installed."""
    try:
        return required_replayer(op)
    except CannotReplayError:
        return None


def can_be_replayed(op: OpRecord) -> bool:
    """Whether a replayer is registered for the operator and its framework is installed. Imports no framework, which takes seconds;
    `replayer_of` also finds out whether the framework can be imported.
    """
    namespace, found, _ = op.kernel.partition("::")
    if not found or namespace not in REPLAYERS or _runs_bodies(op):
        return False
    if namespace in _PACKAGES:
        return not missing_packages([op.kernel])
    return replayer_of(op) is not None


def defaults_of(op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
    """The default arguments of an operator; empty if its framework is not installed or they are unknown."""
    replayer = replayer_of(op)
    return {} if replayer is None else replayer.defaults(op, inputs)


def required_replayer(op: OpRecord) -> Replayer:
    """The replayer for an operator. If there is none, raises CannotReplayError with the reason."""
    namespace, found, _ = op.kernel.partition("::")
    if not found or namespace not in REPLAYERS:
        raise CannotReplayError(_why_unknown(op, namespace if found else ""))
    if _runs_bodies(op):
        raise CannotReplayError(f"{op.kernel} runs the operators of its bodies, which the dump does not have")
    missing = missing_packages([op.kernel])
    if missing:  # a failed import takes 10 ms, and a comparison asks for each operator
        raise CannotReplayError(_why_not_imported(op, namespace, f"No module named '{missing[0]}'"))
    try:
        return REPLAYERS.load(namespace)
    except ImportError as error:
        raise CannotReplayError(_why_not_imported(op, namespace, str(error))) from error


def _why_not_imported(op: OpRecord, namespace: str, error: str) -> str:
    packages = _PACKAGES.get(namespace, namespace)
    return f"{op.kernel} needs its framework to run again, which cannot be imported here ({error}); run: pip install {packages}"


def _runs_bodies(op: OpRecord) -> bool:
    return any(isinstance(value, Mapping) and "graph" in value for value in op.arguments.values())


def _why_unknown(op: OpRecord, namespace: str) -> str:
    if op.kernel.startswith("compiled"):
        return f"{op.op_name} is a whole graph compiled by torch.compile; to record the operators inside, use `opdump run --eager`"
    known = ", ".join(f"{name}::" for name in REPLAYERS.names())
    what = f"operators of {namespace}:: are" if namespace else f"{op.kernel or op.op_type} is"
    return f"{what} not run again here: there are replayers for {known}; packages can add others under opdump.replayers (docs/extensions.md)"
