"""What the runtime may do to an operator by its type where it rewrites a graph."""

from __future__ import annotations

from typing import Final

FORWARDS: Final = frozenset({"Identity", "RefIdentity", "StopGradient", "PreventGradient", "IdentityN", "Snapshot"})
"""Give what they read, slot by slot."""
MADE_OF_SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "ZerosLike", "OnesLike"})
"""What they give may be known before a run, whatever they read."""
GIVE_THE_SAME: Final = FORWARDS | {"Reshape", "BroadcastTo", "Squeeze", "ExpandDims", "Neg", "Cast", "NoOp"}
"""Stand for operators that have nothing to compute, and give what these would: products with one, sums over nothing."""
WRITTEN_AS: Final = frozenset(
    {("RealDiv", "Mul"), ("Div", "Mul"), ("Mul", "Square"), ("Log", "Log1p"), ("Log", "LogSoftmax"), ("Exp", "Expm1")}
    | {("Pow", other) for other in ("Identity", "Inv", "Mul", "Reciprocal", "Rsqrt", "Sqrt", "Square")}
    | {(one, other) for one in ("Add", "AddV2", "BiasAdd") for other in ("Add", "AddV2", "AddN", "BiasAdd")}
)
"""What the runtime computes an operator as, under its name. A square root that becomes its reciprocal has the name too, and is not among them."""
COMMUTATIVE: Final = frozenset(
    {"Add", "AddV2", "AddN", "Mul", "Maximum", "Minimum", "SquaredDifference", "Equal", "NotEqual"}
    | {"LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "AccumulateNV2"}
)
