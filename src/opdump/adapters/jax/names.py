"""The operators of a program: names, phases and arguments of those of a jaxpr, their lines, and the makers of arrays."""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from opdump.adapters.program_stacks import ProgramStacks, Stack
from opdump.records import Phase

# Names, phases and arguments of the operators of a jaxpr.
#
# >>> scope_of("transpose(jvp(GPT))/block_0/Dense_0")
# 'GPT/block_0/Dense_0'
# >>> scope_of("vmap(eqx.nn.MLP)/jit(relu)")
# 'eqx.nn.MLP/relu'

_CALL: Final = re.compile(r"[A-Za-z_][\w.]*\((.*)\)\Z", re.DOTALL)
# Parts that JAX adds to name stacks itself; they are no scopes of the program.
_WITHOUT_SCOPE: Final = frozenset(
    {"rematted_computation", "checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call"}
)
_DEEPEST: Final = 3
_LONGEST: Final = 400
_NUMPY_NUMBER: Final = re.compile(r"np\.\w+\(([^()]*)\)")
"""A number in the text of an object, such as `np.int64(0)`."""


def parts_of(text: str) -> Iterator[str]:
    """Split at the slashes outside of parentheses."""
    depth = begin = 0
    for place, letter in enumerate(text):
        if letter == "/" and depth == 0:
            yield text[begin:place]
            begin = place + 1
        depth += (letter == "(") - (letter == ")")
    yield text[begin:]


def scope_of(name_stack: str) -> str:
    """The scopes of a name stack, without the transformations around them."""
    found = []
    for part in parts_of(name_stack):
        scope = part
        while (call := _CALL.match(scope)) is not None:
            scope = call[1]
        found += [scope] if scope and scope not in _WITHOUT_SCOPE else []
    return "/".join(found)


def stack_text(name_stack: Any) -> str:
    """A name stack as text, with all transformations. The text of JAX 0.6 lacks those that contain no scope."""
    text = str(name_stack)
    for each in reversed(getattr(name_stack, "stack", ())):
        if type(each).__name__ == "Transform" and f"{each.name}(" not in text:
            text = f"{each.name}({text})"
    return text


def phase_of(name_stack: str, *, follows_backward: bool) -> Phase:
    """The phase of an equation, by its name stack. `follows_backward`: an input depends on a backward equation."""
    if "transpose(" in name_stack:
        return "recomputation" if "rematted_computation" in name_stack else "backward"
    if "jvp(" not in name_stack and follows_backward:
        return "optimizer"
    return "forward"


class Names:
    """Unique names of the equations of a function. A path always has the same name.

    The name is `Default/{scopes}/{primitive}-op{n}`, with the prefix `Gradients/` if differentiation made the equation. n counts the
    operators of one type in one scope, in the order of the jaxpr.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[object, ...], str] = {}
        self._counts: Counter[str] = Counter()

    def of(self, path: tuple[object, ...], scope: str, primitive: str, phase: Phase) -> str:
        """The name of the equation at `path`, which is unique in the function."""
        known = self._names.get(path)
        if known is None:
            prefix = "Gradients/Default" if phase in ("backward", "recomputation") else "Default"
            stem = "/".join(part for part in (prefix, scope, primitive) if part)
            known = self._names[path] = f"{stem}-op{self._counts[stem]}"
            self._counts[stem] += 1
        return known


def value_name(path: str) -> str:
    """The name of an argument or a result by its path in the tree of arguments.

    >>> value_name("params['params']['Dense_0']['kernel']")
    'params.params.Dense_0.kernel'
    """
    return re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", path).strip(".") or "value"


def arguments_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an equation as JSON values, without jaxprs and functions. Other objects become text."""
    found = {}
    for name, value in parameters.items():
        if value is None or hasattr(value, "eqns") or hasattr(value, "jaxpr") or callable(value):
            continue
        found[name] = _json(value, 0)
    return found


def _json(value: Any, depth: int) -> Any:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float)):
        return value.item()
    if isinstance(value, (tuple, list)) and depth < _DEEPEST and not hasattr(value, "_fields"):
        return [_json(each, depth + 1) for each in value]
    text = _NUMPY_NUMBER.sub(r"\1", str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


# The lines of the program where an equation was traced.

LIBRARIES: Final = ("jax", "jaxlib", "flax", "optax", "equinox", "chex", "haiku", "orbax")
"""Packages whose lines do not belong to the program."""


@functools.cache
def _directories() -> tuple[str, ...]:
    import jax

    home = Path(jax.__file__).parents[1]
    return tuple(f"{home / name}/" for name in LIBRARIES)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file is part of JAX or of a library on JAX."""
    return file.startswith((*_directories(), "<frozen"))


@functools.cache
def is_of_jax(file: str) -> bool:
    """Whether a file is part of JAX itself: `jax` or `jaxlib`, the first two of LIBRARIES."""
    return file.startswith(_directories()[:2])


def frames_of(traceback: Any) -> Stack:
    """The program's lines in a traceback of JAX, innermost first; empty if there is no traceback."""
    frames = () if traceback is None else traceback.frames
    return _stacks().of_lines((frame.file_name, frame.line_num, frame.function_name) for frame in frames)


def program_frames() -> Stack:
    """The program's lines on the stack of this thread, innermost first."""
    return _stacks().running(sys._getframe(1))


@functools.cache
def _stacks() -> ProgramStacks:
    return ProgramStacks(_directories())


def file_of_function(source: str | None) -> str:
    """The file in `train_step at /home/me/train.py:11`, JAX's description of a function; empty if there is none."""
    return (source or "").rpartition(" at ")[2].rpartition(":")[0]


# Finds the operator that made an array, for operators that run one by one. The program passes on the array object that JAX returned.


def _held_by(value: Any) -> Any:
    """The array itself, or the one that a random key holds: `jax.random.key` wraps an operator's result, and no operator runs for it."""
    return getattr(value, "_base_array", value)


class Makers:
    """The makers of one step. In the next step the same names belong to other operators."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        """By the identity of an array. The entry is removed with the array, because another object may then get the same identity."""
        self._step = -1

    def made(self, op_name: str, results: Sequence[Any], step: int) -> None:
        """Note that an operator returned these arrays."""
        self._begin(step)
        for slot, result in enumerate(map(_held_by, results)):
            identity = id(result)
            # An array that is only passed on keeps its first maker.
            if self.source_of(result, step) == "":
                self._known[identity] = weakref.ref(result, self._gone(identity)), f"{op_name}:{slot}"

    def source_of(self, value: Any, step: int) -> str:
        """The source of an argument; empty if no operator of the step made it."""
        self._begin(step)
        value = _held_by(value)
        known = self._known.get(id(value))
        return known[1] if known is not None and known[0]() is value else ""

    def _begin(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._known.clear()

    def _gone(self, identity: int) -> Any:
        known = self._known

        def forget(gone: weakref.ref[Any]) -> None:
            # A new array may already have the identity, and its own entry.
            entry = known.get(identity)
            if entry is not None and entry[0] is gone:
                del known[identity]

        return forget
