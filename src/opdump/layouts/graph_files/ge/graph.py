"""The graph of a model, in the structure of a graph file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GeTensor:
    """Element type (lower case, empty if unknown) and shape of a value; -1 is an unknown dimension.

    `shape` None: the number of dimensions is unknown, too.
    """

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    format: str = "ND"


@dataclass(frozen=True, slots=True)
class GeOrigin:
    """The operator of the original model that produced a value."""

    op_name: str
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeOperator:
    """One operator.

    `inputs` are the sources `{op_name}:{slot}`, empty for an omitted slot; `input_tensors` and `input_names` are parallel to
    them. They are followed by control dependencies, `{op_name}:-1`, without parallel entries. `origins` belong to the outputs.
    `runs` is False if no task runs the operator, so that it leaves no data. `attributes` are JSON values.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    input_tensors: tuple[GeTensor, ...] = ()
    input_names: tuple[str, ...] = ()
    constant_inputs: tuple[bool, ...] = ()
    outputs: tuple[GeTensor, ...] = ()
    origins: tuple[GeOrigin | None, ...] = ()
    original_names: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    subgraphs: tuple[str, ...] = ()
    """Names of the graphs of its bodies."""
    runs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GeGraph:
    """The operators of a model in execution order, preceded by those of type Data and Const."""

    name: str
    inputs: tuple[str, ...] = ()
    """`{op_name}:{slot}` of the inputs of the model."""
    outputs: tuple[str, ...] = ()
    """`{op_name}:{slot}` of the outputs of the model."""
    operators: tuple[GeOperator, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""


def is_control_edge(source: str) -> bool:
    """Whether an input is a control dependency instead of a value."""
    return source.endswith(":-1")
