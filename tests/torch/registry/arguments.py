"""Arguments for any operator, made from its schema: guesses, of which the first one that the operator accepts is used."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
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
