"""The state that a call of an operator leaves in its arguments and results, as far as autograd and the program can see it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from tests.torch.registry.arguments import Guess, filled

State = dict[str, Any]
WAYS = ("plain", "view", "gradient", "inference mode", "inference tensors", "autocast")


def operator_of(name: str) -> Any:
    """`aten::add_.Tensor` as a callable."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def schema_of(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return torch._C._get_schema(packet, overload)


def call(name: str, guess: Guess, way: str) -> State:
    """Call an operator on new arguments, and describe these and the results, except for their values."""
    arguments: list[Tensor] = []
    maker = maker_of(way)

    def made(tensor: Tensor) -> Tensor:
        arguments.append(maker(tensor))
        return arguments[-1]

    torch.default_generator.manual_seed(3)
    positional, named = filled(schema_of(name), guess, made)
    with ExitStack() as stack:
        if way.startswith("inference"):
            stack.enter_context(torch.inference_mode())
        if way == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        try:
            result = operator_of(name)(*positional, **named)
        except Exception as error:  # noqa: BLE001  # what it refuses, it must refuse in both runs
            return {"refused": type(error).__name__, "why": str(error).partition("\n")[0][:200]}
    results = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return described(arguments, results)


def maker_of(way: str) -> Callable[[Tensor], Tensor]:
    """A function that makes an argument from a tensor, for one way to call operators."""
    return _inference if way == "inference tensors" else _MAKERS.get(way, _plain)


def described(arguments: list[Tensor], results: list[Tensor]) -> State:
    """The facts of arguments and results, and the state of the random generator."""
    state: State = {}
    for what, tensors in (("argument", arguments), ("result", results)):
        for place, tensor in enumerate(tensors):
            for key in _FACTS:
                state[f"{what} {place}: {key}"] = _fact(key, tensor, arguments)
    state["random numbers"] = hash(bytes(torch.get_rng_state().numpy()))
    return state


def _plain(tensor: Tensor) -> Tensor:
    return tensor


def _view(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor])[1]


def _gradient(tensor: Tensor) -> Tensor:
    return tensor.requires_grad_() * 1 if tensor.is_floating_point() or tensor.is_complex() else tensor


def _inference(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


_MAKERS: dict[str, Callable[[Tensor], Tensor]] = {"view": _view, "gradient": _gradient}


_FACTS: dict[str, Callable[[Tensor, list[Tensor]], Any]] = {
    "type": lambda t, _: (str(t.dtype), str(t.layout), t.is_conj(), t.is_neg(), t.is_quantized),
    "shape": lambda t, _: tuple(t.shape),
    "place in memory": lambda t, _: (t.stride(), t.storage_offset()),
    "version": lambda t, _: "none" if t.is_inference() else t._version,
    "version of the base": lambda t, _: None if t._base is None or t._base.is_inference() else t._base._version,
    "gradient": lambda t, _: (t.requires_grad, t.is_leaf, t.output_nr),
    "node": lambda t, _: None if t.grad_fn is None else type(t.grad_fn).__name__,
    "inference": lambda t, _: t.is_inference(),
    "view": lambda t, _: t._is_view(),
    "same object as argument": lambda t, given: [place for place, other in enumerate(given) if other is t],
    "memory of argument": lambda t, given: [place for place, other in enumerate(given) if _share(t, other)],
}


def _fact(key: str, tensor: Tensor, arguments: list[Tensor]) -> Any:
    try:
        return _FACTS[key](tensor, arguments)
    except (RuntimeError, NotImplementedError) as error:  # a sparse tensor has no strides
        return type(error).__name__


def _share(one: Tensor, other: Tensor) -> bool:
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False
