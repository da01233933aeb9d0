"""Names, phases and arguments of the operators of a jaxpr.

>>> scope_of("transpose(jvp(GPT))/block_0/Dense_0")
'GPT/block_0/Dense_0'
>>> scope_of("vmap(eqx.nn.MLP)/jit(relu)")
'eqx.nn.MLP/relu'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from opdump.records import Phase

_CALL: Final = re.compile(r"[A-Za-z_][\w.]*\((.*)\)\Z", re.DOTALL)
# Parts that JAX adds to name stacks itself; they are no scopes of the program.
_WITHOUT_SCOPE: Final = frozenset(
    {"rematted_computation", "checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call"}
)
_DEEPEST: Final = 3
_LONGEST: Final = 200


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
    if isinstance(value, (tuple, list)) and depth < _DEEPEST and not hasattr(value, "_fields"):
        return [_json(each, depth + 1) for each in value]
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
