"""Writes a tensor as npy, bin, pt or txt.

npy: C order, numpy's header 1.0, types that numpy lacks are widened. bin: the elements as stored on the device. pt: a PyTorch
tensor, of the true type if PyTorch has it. txt: one value per line, the shortest text that reads back as the same element, after

    # dtype=float16 shape=(2,3)
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from opdump.conversion.output_directory import write_all, write_two
from opdump.conversion.plan import FileType
from opdump.dump_file.stored_bytes import Bytes, FileBytes
from opdump.npy_header import npy_header

if TYPE_CHECKING:
    from opdump.conversion.plain_tensor import PlainTensor
    from opdump.conversion.stored_tensor import StoredTensor

# From this size on, elements are copied from file to file instead of being mapped.
_LARGE = 1 << 20


_npy_header = lru_cache(maxsize=256)(npy_header)  # a dump has many tensors of few shapes


def _write_npy(stored: StoredTensor, descriptor: int) -> int:
    kind = stored.host_type
    descr = ("|" if kind.itemsize == 1 else "<") + kind.str[1:]
    header = _npy_header(descr, stored.shape)
    if not stored.is_untouched:
        return write_all(descriptor, (header,)) + write_all(descriptor, stored.values())
    return _write_untouched(descriptor, header, stored.tensor.data, stored.codes.nbytes)


def write_plain(plain: PlainTensor, file_type: FileType, descriptor: int) -> int:
    """Write a plain tensor as npy or bin; returns the number of bytes written."""
    header = _npy_header(plain.descr, plain.shape) if file_type == "npy" else b""
    return _write_untouched(descriptor, header, plain.tensor.data, plain.size)


def _write_bin(stored: StoredTensor, descriptor: int) -> int:
    if not stored.is_untouched:
        return write_all(descriptor, stored.raw())
    return _write_untouched(descriptor, b"", stored.tensor.data, stored.codes.nbytes)


def _write_untouched(descriptor: int, header: bytes, data: Bytes, size: int) -> int:
    """Write a header and the first `size` bytes of `data`."""
    if size >= _LARGE and isinstance(data, FileBytes):
        # Every piece except the first begins at a page boundary of the new file.
        pieces = data.source.pieces(data.start, size, first=_LARGE - len(header) % mmap.PAGESIZE)
        with closing(pieces):
            return write_all(descriptor, (header,)) + write_all(descriptor, pieces)
    return write_two(descriptor, header, data.read()[:size])


def _write_txt(stored: StoredTensor, descriptor: int) -> int:
    sizes = ",".join(map(str, stored.shape)) + ("," if len(stored.shape) == 1 else "")
    header = f"# dtype={stored.dtype_name} shape=({sizes})\n".encode()

    def lines() -> Iterator[bytes]:
        for piece in stored.values():
            for start in range(0, len(piece), 1 << 16):
                some = piece[start : start + (1 << 16)]
                if some.dtype.kind == "b":
                    some = some.view("u1")
                yield "\n".join(some.astype(str).tolist()).encode() + b"\n"
                del some
            del piece  # frees it before the next piece is made

    return write_all(descriptor, (header,)) + write_all(descriptor, lines())


def _write_pt(stored: StoredTensor, descriptor: int) -> int:
    from opdump.conversion.torch_file import write_torch

    return write_torch(stored, descriptor)


WRITERS: Final[Mapping[FileType, Callable[[StoredTensor, int], int]]] = MappingProxyType(
    {"npy": _write_npy, "bin": _write_bin, "pt": _write_pt, "txt": _write_txt}
)
"""Writes a tensor to a descriptor; returns the number of bytes written."""
