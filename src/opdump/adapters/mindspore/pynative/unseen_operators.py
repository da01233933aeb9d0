"""A table of backward operators that MindSpore does not dispatch, by the forward operator whose gradients they compute.

Autograd hooks see only their incoming and outgoing gradients. Their names are from the log of MindSpore 2.10 (`GLOG_v=1`, `Run Op cache
miss`). The gradient of a forward operator that is not in the table is named after it: `Grad_{type}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from opdump.adapters.mindspore.pynative.naming import gradient_scope


class UnseenOperator(NamedTuple):
    """An operator of the backward pass. `given` is the slot in which it reads the gradient of the forward result; None if it does not
    read it. `results` are the inputs of the forward operator whose gradients it computes; empty for all that remain.
    """

    op_type: str
    given: int | None = 0
    results: tuple[int, ...] = ()

    def scope(self, path: str, forward_type: str) -> str:
        """The operator's scope in a compiled network. If its type is unknown, the type already names the forward operator, and the scope does not."""
        is_known = self.op_type != _unknown(forward_type).op_type
        return gradient_scope(path, forward_type if is_known else "")


_OPERATORS: Final[Mapping[str, tuple[UnseenOperator, ...]]] = {
    "AdaptiveAvgPool2D": (UnseenOperator("AdaptiveAvgPool2DGrad"),),
    "AvgPool": (UnseenOperator("AvgPoolGrad", 2),),
    "BCEWithLogitsLoss": (UnseenOperator("BinaryCrossEntropyWithLogitsBackward"),),
    "BatchNorm": (UnseenOperator("BatchNormGrad"),),
    "BiasAdd": (UnseenOperator("BiasAddGrad", 0, (1,)),),
    "Conv2D": (UnseenOperator("Conv2DBackpropInput", 0, (0,)), UnseenOperator("Conv2DBackpropFilter", 0, (1,))),
    "Conv2DTranspose": (UnseenOperator("Conv2D", 0, (0,)), UnseenOperator("Conv2DBackpropFilter", 1, (1,))),
    "Conv3D": (UnseenOperator("Conv3DBackpropInput", 1, (0,)), UnseenOperator("Conv3DBackpropFilter", 1, (1,))),
    "Dropout": (UnseenOperator("DropoutGrad"),),
    "Elu": (UnseenOperator("EluGrad"),),
    "Gather": (UnseenOperator("UnsortedSegmentSum"),),
    "LSTM": (UnseenOperator("LSTMGrad", 3),),
    "LayerNorm": (UnseenOperator("LayerNormGrad", 1),),
    "MaxPool": (UnseenOperator("MaxPoolGrad", 2),),
    "MaxPool3D": (UnseenOperator("MaxPool3DGrad", 2),),
    "ReLU6": (UnseenOperator("ReLU6Grad"),),
    "ResizeBilinearV2": (UnseenOperator("ResizeBilinearGrad"),),
    "SelectView": (UnseenOperator("UnsortedSegmentSum"),),
    "Softmax": (UnseenOperator("SoftmaxBackward"),),
    "SparseSoftmaxCrossEntropyWithLogits": (UnseenOperator("SparseSoftmaxCrossEntropyWithLogits", None),),
    "Stack": (UnseenOperator("Unstack"),),
    "StridedSlice": (UnseenOperator("StridedSliceGrad"),),
}


def computes_first(forward_type: str) -> bool:
    """Whether an unseen operator computes a value from which dispatched operators then make the gradient."""
    return any(operator.given is None for operator in _OPERATORS.get(forward_type, ()))


def operators_of(forward_type: str, gradients: Mapping[int, Any]) -> Sequence[tuple[UnseenOperator, list[Any]]]:
    """The operators that computed these gradients, and the results of each. `gradients` are by input of the forward operator."""
    left = dict(gradients)
    found = []
    for operator in (*_OPERATORS.get(forward_type, ()), _unknown(forward_type)):
        results = [left.pop(place) for place in (operator.results or sorted(left)) if place in left]
        if results:
            found.append((operator, results))
    return found


def _unknown(forward_type: str) -> UnseenOperator:
    return UnseenOperator(f"Grad_{forward_type}")
