"""Raises AttributeError for names of pyACL that are missing here, with the reason, the alternative, or the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final, NoReturn

from opdump.plan.unmatched_names import with_nearest

_PAGE: Final = "docs/acl.md lists every call"
_IMAGES: Final = (
    "the units of a device that decode, resize and encode images and video (DVPP) are not simulated; use OpenCV, Pillow or numpy, and "
    "copy the array: acl.rt.memcpy(address, size, array.ctypes.data, array.nbytes, 1)"
)
_COMPILED: Final = (
    "operators are not compiled ahead; call acl.op.execute_v2, which makes the model of an operator when it runs"
)
_REASONS: Final[tuple[tuple[str, str], ...]] = (
    ("media", _IMAGES),
    ("himpi", _IMAGES),
    ("blas", "matrix products of the library are not simulated; call acl.op.execute_v2 with MatMul or Gemm of ONNX, or numpy.matmul"),
    ("prof", "times are those of the host, so profiling is not simulated; take the times of the whole program"),
    ("fv", "search for features is not simulated; use numpy"),
    ("tdt", "channels between host and device are not simulated; copy with acl.rt.memcpy"),
    ("mdl.*aipp*", "AIPP, the preprocessing inside of a model, is not simulated; crop, scale and normalise with numpy before acl.rt.memcpy"),
    ("mdl.*_with_q", "queues are not simulated; call acl.mdl.load_from_file and acl.mdl.execute"),
    ("mdl.bundle_*", "bundles of models are not simulated; load each ONNX file with acl.mdl.load_from_file"),
    ("mdl.create_and_get_op_desc", "tasks of a device are not simulated; the files of the dump contain operators and shapes"),
    ("op.*compile*", _COMPILED),
    ("op.*handle*", _COMPILED),
    ("op.*cast*", "call acl.op.execute_v2 with Cast of ONNX"),
    ("op.*inference_shape*", "acl.op.execute_v2 writes the shapes that came out into the descriptions of the outputs"),
    ("rt.*exception*", 'failing operators are dumped by "dump_scene" in acl.json'),
    ("rt.*physical*", "memory of a device is that of the host; call acl.rt.malloc"),
    ("rt.*peer*", "there is one device"),
    ("rt.memcpy2d*", "copy each row with acl.rt.memcpy, or the array with numpy"),
    ("set_tensor_const", "an input that is constant is an input like the others"),
)  # fmt: skip


def refuse(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module, `opdump.acl` or a submodule, with the names in `known`."""
    names = tuple(known)
    prefix = f"{module.removeprefix('opdump.acl').lstrip('.')}.".lstrip(".")

    def __getattr__(name: str) -> NoReturn:  # noqa: N807  it becomes the module's
        whole = f"{prefix}{name}"
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        for pattern, reason in _REASONS:
            if fnmatchcase(whole, pattern):
                raise AttributeError(f"acl.{whole} is not here: {reason}; {_PAGE}", name=name)
        text = with_nearest(f"acl.{whole} is not here", name, names)
        raise AttributeError(f"{text}; {_PAGE}", name=name)

    return __getattr__
