"""The gears of a model: the alternative shapes that it was converted for.

ATC takes them as options, and a model for a device contains them. An ONNX file has them as metadata, with the same names and
syntax:

    onnx.helper.set_model_props(model, {"input_shape": "x:-1,3,224,224", "dynamic_batch_size": "1,2,4,8"})

    input_shape          x:1,3,-1,-1;mask:-1,5     the shapes of inputs; -1 changes with the gear
    dynamic_batch_size   1,2,4,8                   one number per gear, for every -1
    dynamic_image_size   416,416;832,832           height and width per gear, for the two -1 of an input
    dynamic_dims         20,1;40,2                 one number per -1 for each gear, in the order of input_shape

Such a model has one more input, after its own, which selects the gear of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from opdump.acl.codes import Code
from opdump.acl.data_types import TensorInfo, size_of
from opdump.acl.failures import CallError

Kind: TypeAlias = Literal["dynamic_batch_size", "dynamic_image_size", "dynamic_dims"]
Shapes: TypeAlias = "tuple[tuple[int, ...], ...]"

KINDS: Final[tuple[Kind, ...]] = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
SELECTOR: Final = "ascend_mbatch_shape_data"
_INPUT_SHAPE: Final = "input_shape"


@dataclass(frozen=True, slots=True)
class Gears:
    """`choices` are the gears as in the metadata; `shapes` those of the inputs, in the order of the model, in each gear."""

    kind: Kind
    choices: tuple[tuple[int, ...], ...]
    shapes: tuple[Shapes, ...]
    order: tuple[int, ...]
    """The inputs in the order of `input_shape`."""
    largest: int
    """The gear whose inputs have the most bytes."""

    @property
    def selector(self) -> TensorInfo:
        """The input that selects the gear of a run."""
        return TensorInfo(SELECTOR, "int32", (len(self.choices[0]),))

    def whole(self, gear: int) -> list[int]:
        """The concatenated shapes of all inputs, in the order of `input_shape`."""
        return [dim for place in self.order for dim in self.shapes[gear][place]]


def with_gears(
    metadata: Mapping[str, str], inputs: Sequence[TensorInfo], where: str
) -> tuple[tuple[TensorInfo, ...], Gears | None]:
    """The inputs as in the metadata, and the gears; None if there are none. Raises CallError for invalid metadata."""
    shaped, order = _shaped(metadata.get(_INPUT_SHAPE), inputs, where)
    kinds = [kind for kind in KINDS if metadata.get(kind)]
    if not kinds:
        return shaped, None
    if len(kinds) > 1:
        raise _wrong(where, f"the model's metadata has {' and '.join(kinds)}, and a model has one of them")
    kind = kinds[0]
    choices = _choices(kind, metadata[kind], where)
    unknown = [(place, axis) for place in order for axis, dim in enumerate(shaped[place].dims) if dim < 0]
    if not unknown:
        raise _wrong(where, f"the model's metadata has {kind}, and no input has a dimension of -1")
    shapes = tuple(_shapes(kind, choice, shaped, unknown, where) for choice in choices)
    largest = max(
        range(len(choices)),
        key=lambda gear: sum(size_of(info.dtype, dims) for info, dims in zip(shaped, shapes[gear], strict=True)),
    )
    return shaped, Gears(kind, choices, shapes, order, largest)


def _shaped(
    text: str | None, inputs: Sequence[TensorInfo], where: str
) -> tuple[tuple[TensorInfo, ...], tuple[int, ...]]:
    """The inputs with the shapes in the metadata, and their order."""
    found, order = list(inputs), []
    names = [info.name for info in inputs]
    for part in filter(None, (each.strip() for each in (text or "").split(";"))):
        name, _, shape = part.rpartition(":")
        name = name.strip().strip('"')
        if name not in names or names.index(name) in order:
            raise _wrong(where, f"input_shape: found {name!r}, expected each of {', '.join(names)} once")
        place = names.index(name)
        dims = _numbers(shape, least=-1, where=where, what="input_shape")
        known = inputs[place].dims
        if len(dims) != len(known) or any(dim not in (-1, given) for dim, given in zip(known, dims, strict=False)):
            raise _wrong(where, f"input_shape: {name!r} is {list(dims)}, and in the graph {list(known)} (-1 is open)")
        found[place] = replace(inputs[place], dims=dims)
        order.append(place)
    return tuple(found), (*order, *(place for place in range(len(inputs)) if place not in order))


def _choices(kind: Kind, text: str, where: str) -> tuple[tuple[int, ...], ...]:
    parts = (
        text.split(",") if kind == "dynamic_batch_size" else filter(None, (each.strip() for each in text.split(";")))
    )
    choices = tuple(_numbers(part, least=1, where=where, what=kind) for part in parts)
    lengths = {len(choice) for choice in choices}
    if len(lengths) != 1 or (kind == "dynamic_image_size" and lengths != {2}):
        expected = "height,width;height,width" if kind == "dynamic_image_size" else "as many numbers in each gear"
        raise _wrong(where, f"{kind}: found {text!r}, expected {expected}")
    return choices


def _shapes(
    kind: Kind,
    choice: tuple[int, ...],
    inputs: Sequence[TensorInfo],
    unknown: Sequence[tuple[int, int]],
    where: str,
) -> Shapes:
    shapes = [list(info.dims) for info in inputs]
    if kind == "dynamic_dims" and len(choice) != len(unknown):
        raise _wrong(
            where,
            f"dynamic_dims: a gear has {len(choice)} numbers, and the inputs have {len(unknown)} dimensions of -1",
        )
    taken = [0] * len(inputs)
    for number, (place, axis) in enumerate(unknown):
        position = number if kind == "dynamic_dims" else taken[place] if kind == "dynamic_image_size" else 0
        if position >= len(choice) or (kind == "dynamic_batch_size" and taken[place]):
            raise _wrong(
                where,
                f"{kind}: {inputs[place].name!r} is {list(inputs[place].dims)}, expected {len(choice)} dimension(s) of -1; "
                'fix the others: "input_shape"',
            )
        shapes[place][axis] = choice[position]
        taken[place] += 1
    if kind == "dynamic_image_size" and any(count not in (0, 2) for count in taken):
        raise _wrong(where, "dynamic_image_size: an input has one dimension of -1, expected height and width")
    return tuple(map(tuple, shapes))


def _numbers(text: str, *, least: int, where: str, what: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if text.strip())
    except ValueError as error:
        raise _wrong(where, f"{what}: found {text!r}, expected whole numbers with commas between") from error
    if any(number < least for number in numbers) or (least > 0 and math.prod(numbers) == 0):
        raise _wrong(where, f"{what}: found {text!r}, expected numbers from {least} on")
    return numbers


def _wrong(where: str, text: str) -> CallError:
    return CallError(Code.PARSE_FILE, f"{where}: {text}; docs/acl.md, shapes that change")
