"""From one format to another: device format, plain format, transposition, and the same back."""

from __future__ import annotations

from opdump.errors import FormatShapeError, UnknownFormatError
from opdump.formats.device_format import Array, Shape, require_plain_shape, require_possible, text
from opdump.formats.registry import DEVICE_FORMATS, FORMATS


def can_convert(source: str, target: str) -> bool:
    """Whether `convert_format` knows the way from one format to the other."""
    if source not in FORMATS or target not in FORMATS:
        return False
    return source == target or _can_transpose(_plain_of(source), _plain_of(target))


def convert_format(
    array: Array, source: str, target: str, *, shape: Shape | None = None, groups: int = 1, c0: int | None = None
) -> Array:
    """The elements of a tensor in another format: `(2, 2, 8, 8, 16)` of NC1HWC0 as `(2, 19, 8, 8)` of NCHW.

    `array` has the shape of `source`; the result that of `target`, and may be a view of it.

    `shape` is the tensor's own shape, in the order of a plain target, else in that of NCHW, NCDHW or, for FRACTAL_NZ,
    of the source. It cuts the padding; without it padding is kept. FRACTAL_Z has no plain shape without it. Between
    plain formats, and into a device format, it changes nothing and must be right.
    `groups` are those of a grouped convolution (FRACTAL_Z, FRACTAL_Z_3D; elsewhere it has no meaning); 0 is what a dump
    file says of none. `c0` is how many channels make a block of a device's target; 16 without it, whatever the dtype,
    4 for NC1HWC0_C04.

    UnknownFormatError: no format of that name, or no conversion. FormatShapeError: the array, or the shape wanted,
    cannot be, or a shape is needed.
    """
    _require_known(source, target)
    if groups < 0 or (c0 is not None and c0 < 1):
        raise FormatShapeError(f"groups and c0 count from 1; found groups={groups}, c0={c0}")
    groups = groups or 1
    wanted = None if shape is None else tuple(int(size) for size in shape)
    if source == target:
        return _same(array, source, wanted)
    plain, plain_target = _plain_of(source), _plain_of(target)
    if plain == "ND":
        plain = plain_target
    elif plain_target == "ND":
        plain_target = plain
    if wanted is not None:
        require_plain_shape(wanted, plain_target)
        require_possible(wanted, array.dtype)
    result = _to_plain(array, source, plain, plain_target, wanted, groups)
    if target in DEVICE_FORMATS:
        device = DEVICE_FORMATS[target]
        return device.from_plain(result, device.c0 if c0 is None else c0, groups)
    return result


def _same(array: Array, name: str, wanted: Shape | None) -> Array:
    if wanted is not None and wanted != array.shape:
        raise FormatShapeError(
            f"the tensor is in {name} already and has the shape {text(array.shape)}, not {text(wanted)}"
        )
    return array


def _to_plain(array: Array, source: str, plain: str, target: str, wanted: Shape | None, groups: int) -> Array:
    """The array in the plain format `target`; `plain` is the one that the source goes through."""
    permutation = _permutation(plain, target)
    if source in DEVICE_FORMATS:
        of_plain = (
            None if wanted is None else tuple(wanted[target.index(axis)] for axis in plain) if plain != "ND" else wanted
        )
        order = permutation if plain != target else None
        result = DEVICE_FORMATS[source].to_plain(array, of_plain, groups, order)
        require_plain_shape(result.shape, plain)
    else:
        require_plain_shape(array.shape, plain)
        result = array
    if permutation is not None:
        result = result.transpose(permutation)
    if wanted is not None and result.shape != wanted:
        raise FormatShapeError(
            f"the tensor of the shape {text(array.shape)} in {source} has the shape {text(result.shape)} in {target}, "
            f"not {text(wanted)}"
        )
    return result


def _permutation(plain: str, target: str) -> Shape | None:
    return None if plain == target else tuple(plain.index(axis) for axis in target)


def _plain_of(name: str) -> str:
    return DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name


def _can_transpose(plain: str, target: str) -> bool:
    return "ND" in (plain, target) or sorted(plain) == sorted(target)


def _require_known(source: str, target: str) -> None:
    for name in (source, target):
        if name not in FORMATS:
            raise UnknownFormatError(f"no format is called {name!r}; these are known: {', '.join(FORMATS)}")
    if not can_convert(source, target):
        targets = ", ".join(name for name in FORMATS if name != source and can_convert(source, name))
        raise UnknownFormatError(f"{source} cannot be converted to {target}; it can be to: {targets}")
