"""Looks up the names that frameworks give to the same operator: one table, so that a configuration may use any of them.

    >>> "Conv2D" in names_of("convolution")
    True
    >>> "relu" in names_of("ReLU")
    True

A row of `table.txt` is one concept. An operator is in every row whose concept it computes: `addmm` multiplies
matrices and adds a bias; PyTorch's `convolution` serves one, two and three dimensions. Sources: torch `native_functions.yaml`, MindSpore's primitives, TensorFlow `raw_ops`,
the primitives of JAX, the ONNX operator list, and the operator library of CANN.

Some JAX primitives have the name of a different PyTorch operator: `gather` of JAX serves `index_select` and `embedding`, `gather` of PyTorch
does not. A bare name refers to the operator of the other frameworks; `lax::gather`, the kernel of a record, refers to JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class OperatorNames:
    """One row: the names of one concept in each framework. A framework without the concept has no names."""

    concept: str
    torch: tuple[str, ...]
    mindspore: tuple[str, ...]
    tensorflow: tuple[str, ...]
    jax: tuple[str, ...]
    onnx: tuple[str, ...]
    ascend: tuple[str, ...]
    jax_in_parts: tuple[str, ...]
    """JAX primitives that can compute it, but usually compute something else: `select_n` is the gradient of a ReLU."""

    @property
    def without_jax(self) -> frozenset[str]:
        """The concept and all names except those of JAX."""
        return frozenset((self.concept, *self.torch, *self.mindspore, *self.tensorflow, *self.onnx, *self.ascend))


def _read_table() -> tuple[OperatorNames, ...]:
    rows = []
    for line in Path(__file__).with_name("table.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            concept, torch, mindspore, tensorflow, jax, onnx, ascend = (tuple(cell.split()) for cell in line.split("|"))
            in_parts = tuple(name.strip("()") for name in jax if name.startswith("("))
            plain = tuple(name for name in jax if not name.startswith("("))
            rows.append(OperatorNames(concept[0], torch, mindspore, tensorflow, plain, onnx, ascend, in_parts))
    return tuple(rows)


def _indexed(
    rows: tuple[OperatorNames, ...], names: Callable[[OperatorNames], Iterable[str]]
) -> Mapping[str, tuple[OperatorNames, ...]]:
    found: dict[str, tuple[OperatorNames, ...]] = {}
    for row in rows:
        for name in set(names(row)):
            found[name] = (*found.get(name, ()), row)
    return MappingProxyType(found)


def bare_name(name: str) -> str:
    """The name without namespace, overload and the trailing underscore of an in-place operator.

    >>> bare_name("aten::add_.Tensor"), bare_name("ReLU"), bare_name("__and__")
    ('add', 'ReLU', '__and__')
    """
    bare = name.rpartition("::")[2].partition(".")[0]
    return bare if bare.endswith("__") or bare == "_" else bare.removesuffix("_")


def is_dispatched(kernel: str) -> bool:
    """Whether a kernel is a function that a framework dispatches. The kernels of TensorFlow and MindSpore are types of graph nodes instead.

    >>> is_dispatched("aten::add.Tensor"), is_dispatched("MatMul"), is_dispatched("mindspore::MatMul"), is_dispatched("tf::MatMul")
    (True, False, False, False)
    """
    namespace, has_namespace, _ = kernel.partition("::")
    return bool(has_namespace) and namespace not in _GRAPHS


_GRAPHS: Final = ("mindspore", "tf")
ROWS: Final = _read_table()
# Some operators differ only in case: `gather` of PyTorch is `GatherElements`, `Gather` of MindSpore is `index_select`.
# So the exact spelling is looked up first.
_BY_PRIMITIVE: Final = _indexed(ROWS, lambda row: (*row.jax, *row.jax_in_parts))
_OF_JAX: Final = _indexed(ROWS, lambda row: row.jax)
_BY_NAME: Final = {**_OF_JAX, **_indexed(ROWS, lambda row: row.without_jax)}
_BY_LOWER_NAME: Final = {**_OF_JAX, **_indexed(ROWS, lambda row: map(str.lower, row.without_jax))}
_OF_JAX_ALONE: Final = frozenset(_OF_JAX).difference(*(row.without_jax for row in ROWS))
# Fused operators. Their other parts do not belong to the concept: `relu` does not select a convolution.
_FUSED: Final = frozenset({"cudnn_convolution_relu", "_addmm_activation", "BatchNormWithActivation"})
_NAMESPACES_OF_JAX: Final = frozenset({"lax", "jnp"})


@dataclass(frozen=True, slots=True)
class _Texts:
    """The lower-case texts that a type in `kernels` is compared with: as a part of some names, as the whole of others."""

    parts: tuple[str, ...]
    whole: frozenset[str]


def _texts(name: str, rows: tuple[OperatorNames, ...], key: Callable[[str], str]) -> _Texts:
    """In the same framework, the other names of a row are different operators: `cudnn_convolution_relu` in the row of
    `convolution`.
    """
    parts: set[str] = set()
    whole: set[str] = set()
    for row in rows:
        parts.add(row.concept.lower())
        # JAX primitives are so general that a part of a name is not significant: `select_and_scatter_add` neither
        # selects nor adds.
        whole.update(_OF_JAX_ALONE.intersection(row.jax))
        for names in (row.torch, row.mindspore, row.tensorflow, row.onnx, row.ascend):
            is_own = name in map(key, names)
            whole.update(each.lower() for each in names if is_own or each in _FUSED)
            parts.update(each.lower() for each in names if not is_own and each not in _FUSED)
    return _Texts(tuple(sorted(parts)), frozenset(whole))


@lru_cache(maxsize=4096)
def _texts_of(name: str) -> _Texts | None:
    """The texts of a name in its exact spelling; None if no row has it. It may exist in lower case only."""
    if name in _BY_NAME:
        return _texts(name, _BY_NAME[name], str)
    if name in _BY_LOWER_NAME:
        return _texts(name, _BY_LOWER_NAME[name], str.lower)
    return None


def rows_of(name: str) -> tuple[OperatorNames, ...]:
    """The concepts that an operator computes, in the order of the table; empty for an unknown one.

    `name` is its type, or its kernel, which identifies the framework: `lax::gather`.
    """
    bare = bare_name(name)
    if name.partition("::")[0] in _NAMESPACES_OF_JAX and bare in _BY_PRIMITIVE:
        return _BY_PRIMITIVE[bare]
    return _BY_NAME.get(bare) or _BY_LOWER_NAME.get(bare.lower(), ())


def names_of(name: str) -> frozenset[str]:
    """Every name, in any framework, of an operator's concepts, including the names of the concepts.

    For an operator that is not in the table, only its name. A JAX name spelled like one of another framework is not included:
    `max` is in the row of `relu`, but means the maximum.
    """
    rows = rows_of(name)
    return frozenset({name}.union(*(row.without_jax | _OF_JAX_ALONE.intersection(row.jax) for row in rows)))


def is_called(name: str, wanted: str, *, whole: bool = False) -> bool:
    """Whether a type in `kernels`, in lower case, selects this operator by another of its names (`names_of`).

    It must be a part of the concept's name or of a name in another framework, or a whole name in the same framework: `conv2d`
    selects `convolution`, and `relu` does not, although `cudnn_convolution_relu` shares a row with it. With `whole`, parts do not count.
    """
    bare = bare_name(name)
    texts = _texts_of(bare) or _texts_of(bare.lower())
    if texts is None:
        return False
    return wanted in texts.whole or (wanted in texts.parts if whole else any(wanted in text for text in texts.parts))
