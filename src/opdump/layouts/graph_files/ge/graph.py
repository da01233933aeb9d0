"""The graph of a model, as a graph file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GeTensor:
    """Element type (lower case, empty where unknown) and shape of a value; a dimension of -1 is not known.

    `shape` None: not even the number of dimensions is known.
    """

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    format: str = "ND"


@dataclass(frozen=True, slots=True)
class GeOrigin:
    """The operator of the original model whose output a value is."""

    op_name: str
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeOperator:
    """One operator.

    `inputs` are `{op_name}:{slot}` of who makes them, empty where a slot is left out; `input_tensors` and `input_names` stand
    beside them. Behind them stand those that it waits for, `{op_name}:-1`, beside which nothing stands. `origins` are those of the outputs. `runs` is False for what no task runs: it leaves no data.
    `attributes` are JSON values.
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
    """The operators of a model in the order in which they run, with those of type Data and Const before them."""

    name: str
    inputs: tuple[str, ...] = ()
    """`{op_name}:{slot}` of what is fed."""
    outputs: tuple[str, ...] = ()
    """`{op_name}:{slot}` of what the model gives."""
    operators: tuple[GeOperator, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""


def is_control_edge(source: str) -> bool:
    """Whether an input is no value: the operator waits for another one."""
    return source.endswith(":-1")
