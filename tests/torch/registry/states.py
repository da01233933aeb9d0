"""Arguments for any operator, and the state that a call leaves in its arguments and results, as far as the program can see it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._symmetric_memory  # registers operators
from torch import Tensor

_SHAPES = ((4, 4), (4,), (2, 4, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4), ())
_TYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.int32)
_INDICES = ("index", "indices", "offsets", "target", "pivots", "mapping", "bag", "sobolstate", "lengths")
_MASKS = ("mask", "condition")


@dataclass(frozen=True, slots=True)
class Guess:
    """One way to fill in what a schema leaves open."""

    shape: tuple[int, ...] = (4, 4)
    dtype: torch.dtype = torch.float32
    number: int = 1
    length: int | None = None
    """The length of lists of integers; None: as long as the shape."""
    optional: bool = False
    """Whether optional tensors are passed."""
    first: tuple[int, ...] | None = None
    """The shape of the first tensor if it differs from that of the others."""
    seed: int | None = None
    """If set, every argument is drawn at random."""


GUESSES = (
    *(Guess(shape) for shape in _SHAPES),
    *(Guess(shape, dtype) for dtype in _TYPES[1:4] for shape in _SHAPES[:2]),
    *(Guess(shape, number=0) for shape in _SHAPES),
    *(Guess(shape, length=length) for shape in _SHAPES for length in (1, 2, 3) if length != len(shape)),
    *(Guess(shape, optional=True) for shape in _SHAPES[:4]),
    Guess((2, 2, 1, 1), first=(1, 2, 4, 4)),
    Guess((2, 2, 1, 1), first=(1, 2, 4, 4), length=2),
    Guess((4,), first=(4, 4), length=1),
    Guess((4,), first=(1, 4, 4, 4), optional=True),
    Guess((2, 2, 1, 1, 1), first=(1, 2, 4, 4, 4), length=3),
    *(Guess(seed=seed) for seed in range(120)),
)


def filled(
    schema: Any, guess: Guess, made: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of an operator; every tensor passes through `made`. Equal for every call."""
    drawn = _Draw(guess, made)
    positional, named = [], {}
    for argument in schema.arguments:
        if argument.has_default_value() and not drawn.gives(argument):
            continue
        value = drawn.value(argument)
        if argument.kwarg_only or argument.has_default_value():
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


class _Draw:
    def __init__(self, guess: Guess, made: Callable[[Tensor], Tensor]) -> None:
        self._guess = guess
        self._made = made
        self._chance = None if guess.seed is None else random.Random(guess.seed)
        self._number = 0

    def gives(self, argument: Any) -> bool:
        """Whether to pass an argument that has a default."""
        if self._chance is not None:
            return self._chance.random() < 0.3
        return self._guess.optional and str(argument.type) == "Optional[Tensor]"

    def value(self, argument: Any) -> Any:
        kind, name = str(argument.type), argument.name
        if kind.startswith("Optional["):
            kind = kind.removeprefix("Optional[").removesuffix("]")
            given = self._chance.random() < 0.5 if self._chance else self._guess.optional and kind == "Tensor"
            if not given:
                return None
        if kind == "Tensor":
            return self._tensor(name)
        if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            # The fused optimizers expect an empty list here, unless amsgrad is on.
            return [] if name.startswith("max_exp") else [self._tensor(name) for _ in range(2)]
        return self._other(kind, argument.N)

    def _other(self, kind: str, count: int | None) -> Any:
        guess, chance = self._guess, self._chance
        number, truth = guess.number, False
        length = count or (len(guess.shape) if guess.length is None else guess.length)
        if chance is not None:
            number, truth = chance.choice((0, 1, 1, 2, 4)), chance.random() < 0.5
            length = count or chance.choice((1, 2, 2, 3, 4))
        values: dict[str, Any] = {
            "Storage": torch.arange(16, dtype=torch.float32).untyped_storage(),
            "number": number if chance is not None or not guess.dtype.is_floating_point else number + 0.5,
            "List[number]": [1.5, 2.5],
            "float": 0.5,
            "List[float]": [0.5] * 2,
            "int": number,
            "SymInt": number,
            "bool": truth,
            "List[int]": [number or 1] * length,
            "List[SymInt]": [number or 1] * length,
            "List[bool]": [True] * (count or 3),
            "str": ("mean", "add", "ij")[number % 3],
            "Device": torch.device("cpu"),
        }
        return values.get(kind)

    def _tensor(self, name: str) -> Tensor:
        guess, chance = self._guess, self._chance
        shape, dtype = guess.shape, guess.dtype
        if self._number == 0 and guess.first is not None:
            shape = guess.first
        if chance is not None:
            shape = chance.choice(_SHAPES)
            dtype = torch.float32 if chance.random() < 0.7 else chance.choice(_TYPES)
        self._number += 1
        if "step" in name:
            return self._made(torch.ones(()))
        if any(word in name for word in _INDICES):
            return self._made(torch.zeros(shape, dtype=torch.int64))
        if any(word in name for word in _MASKS):
            return self._made(torch.ones(shape, dtype=torch.bool))
        values = torch.rand(shape, generator=torch.Generator().manual_seed(self._number)) + 0.25
        if name.startswith("out"):
            values = values.zero_()
        return self._made(values > 0.7 if dtype is torch.bool else (values * 3).to(dtype))


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


NAMESPACE = "symm_mem"


def give_kernels() -> torch.library.Library:
    """Register kernels for the operators that have none on the host, for as long as the result lives."""
    library = torch.library.Library(NAMESPACE, "IMPL")
    for name in sorted(map(str, torch._C._dispatch_get_all_op_names())):
        if name.startswith(f"{NAMESPACE}::") and not _has_kernel(name):
            library.impl(name.partition("::")[2], _kernel(schema_of(name)), "CPU")
    return library


def _has_kernel(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(name, key) for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"))


def _kernel(schema: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        written: dict[str, Any] = {}
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = given[argument.name]
                for each in value if isinstance(value, list) else [value]:
                    each.add_(1)
                written.update(dict.fromkeys(argument.alias_info.before_set, value))
        results = []
        for value in schema.returns:
            if value.alias_info is not None:
                (alias,) = value.alias_info.before_set
                results.append(written[alias])
            else:
                results.append([tensors[0] + 1, tensors[0] + 2] if "List" in str(value.type) else tensors[0] + 1)
        return results[0] if len(results) == 1 else tuple(results) or None

    return run
