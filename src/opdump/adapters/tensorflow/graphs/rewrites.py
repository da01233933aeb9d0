"""The runtime's rewrites of operators, by type."""

from __future__ import annotations

from typing import Final

FORWARDS: Final = frozenset({"Identity", "RefIdentity", "StopGradient", "PreventGradient", "IdentityN", "Snapshot"})
"""They return their inputs, slot by slot."""
MADE_OF_SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "ZerosLike", "OnesLike"})
"""Their results may be known before a run, whatever the inputs are."""
GIVE_THE_SAME: Final = FORWARDS | {"Reshape", "BroadcastTo", "Squeeze", "ExpandDims", "Neg", "Cast", "NoOp"}
"""They replace operators that need no computation and return their results: products with one, sums over nothing."""
WRITTEN_AS: Final = frozenset(
    {("RealDiv", "Mul"), ("Div", "Mul"), ("Mul", "Square"), ("Log", "Log1p"), ("Log", "LogSoftmax"), ("Exp", "Expm1")}
    | {("Pow", other) for other in ("Identity", "Inv", "Mul", "Reciprocal", "Rsqrt", "Sqrt", "Square")}
    | {(one, other) for one in ("Add", "AddV2", "BiasAdd") for other in ("Add", "AddV2", "AddN", "BiasAdd")}
)
"""The types with which the runtime computes an operator, under its name. A square root that becomes a reciprocal one keeps the name, and
is not included.
"""
COMMUTATIVE: Final = frozenset(
    {"Add", "AddV2", "AddN", "Mul", "Maximum", "Minimum", "SquaredDifference", "Equal", "NotEqual"}
    | {"LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "AccumulateNV2"}
)
