"""Finds out whether XLA kept, fused or removed the operators of a jaxpr."""

from __future__ import annotations

import re
from typing import Any, Final

from opdump.adapters.jax.names import parts_of
from opdump.adapters.jax.schedule import Equation

YES: Final = "yes"
ABSENT: Final = "absent"
_BEGIN: Final = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_CALLS: Final = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_OP_NAME: Final = re.compile(r'op_name="([^"]*)"')
# Parts of names that differ between the jaxpr and the compiled program.
_BODIES: Final = frozenset(
    {"while", "body", "cond", "closed_call", "scan", "shard_map", "checkpoint", "rematted_computation"}
)


class Outcomes:
    """The outcome of each operator in a program that XLA compiled: `yes`, `fused into {instruction}` or `absent`.

    Each instruction names the equation of its origin (`op_name`). Equations with the same name cannot be distinguished.
    """

    def __init__(self, executable: Any) -> None:
        """If `executable` is None or has no text, all outcomes are unknown."""
        text = "" if executable is None else _text_of(executable)
        self._found = _instructions(text)
        self.are_known = bool(text)

    def of(self, equation: Equation) -> str:
        return self._found.get(_normal(equation.hlo_name), ABSENT) if self.are_known else "unknown"


def _text_of(executable: Any) -> str:
    try:
        modules = executable.runtime_executable().hlo_modules()
    except Exception:  # noqa: BLE001  some devices have no text; outcomes are then recorded as unknown
        return ""
    return "\n".join(module.to_string() for module in modules)


def _instructions(text: str) -> dict[str, str]:
    """The outcome of each equation, by its normalised name. An own instruction takes precedence over a fused one."""
    within: dict[str, list[str]] = {}
    fused: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if (begin := _BEGIN.match(line)) is not None:
            computation = begin[2]
        elif (instruction := _INSTRUCTION.match(line)) is not None:
            if " fusion(" in line and (called := _CALLS.search(line)) is not None:
                fused[called[1]] = instruction[1]
            if (name := _OP_NAME.search(line)) is not None:
                within.setdefault(computation, []).append(name[1])
    found: dict[str, str] = {}
    for computation, names in within.items():
        outcome = f"fused into {fused[computation]}" if computation in fused else YES
        for op_name in names:
            key = _normal(op_name.partition("/")[2])
            if found.get(key) != YES:
                found[key] = outcome
    return found


def _normal(name: str) -> str:
    return "/".join(
        part
        for part in parts_of(name)
        if part not in _BODIES and part != "jit(main)" and not part.startswith("branch_")
    )
