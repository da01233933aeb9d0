"""One entry of the `kernels` list: a full name, an operator type, or `name-regex(...)`.

>>> KernelPattern.parse("Conv2D").matches("Default/conv1-Conv2d/convolution-op3", "convolution")
True
>>> KernelPattern.parse("name-regex(Default/.+)").matches("Default/conv1-Conv2d/convolution-op3", "convolution")
True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from opdump.errors import ConfigError
from opdump.op_types import is_called

_REGEX_HEAD = "name-regex("


@dataclass(frozen=True, slots=True)
class KernelPattern:
    """Selects operators by name or type. `text` is the entry without quotes and spaces; `kind` follows from it."""

    text: str
    kind: Literal["regex", "name", "type"]
    _is_meant: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> KernelPattern:
        """Reads one entry; all double quotes and spaces in it are dropped first, as MindSpore does.

        `name-regex(E)` is an ECMAScript expression that must match the whole name. An entry with neither `/` nor
        `-op` is a type. Anything else is a full name. The empty entry is the type that every operator has.

        Raises ConfigError for an expression that is not one, and for one whose matching has no bound.
        """
        entry = text.replace('"', "").replace(" ", "")
        if entry.startswith(_REGEX_HEAD) and entry.endswith(")"):
            from opdump.plan.bounded_pattern import UnboundedPatternError, matcher_of

            try:
                is_meant = matcher_of(entry[len(_REGEX_HEAD) : -1])
            except UnboundedPatternError as error:
                raise ConfigError(f"kernels: {entry!r} could take any time to match: {error}") from error
            except (ValueError, re.error, OverflowError, RecursionError) as error:
                raise ConfigError(
                    f"kernels: {entry!r} holds no valid regular expression: {error}; "
                    f'write it like "name-regex(Default/.+)", with "[(]" for a literal parenthesis'
                ) from error
            return cls(entry, "regex", is_meant)
        if "/" not in entry and "-op" not in entry:
            return cls(entry, "type")
        return cls(entry, "name")

    def matches(self, op_name: str, op_type: str) -> bool:
        """Whether the operator is selected.

        `op_name` is the full scope with slashes; of a parameter (`op_type` "Parameter") it is the dotted name, with
        or without the prefix `Parameter.`, which is no part of the name. A type matches, in any case, a part of the
        name's last component before its final `-`, or a part of any name that another framework has for that operator, or the whole
        of another name in its own (`linear` matches `addmm`).
        """
        if op_type == "Parameter" and op_name.startswith("Parameter."):
            return op_name == self.text or self._matches_name(op_name[len("Parameter.") :], op_type)
        return self._matches_name(op_name, op_type)

    def _matches_name(self, op_name: str, op_type: str) -> bool:
        if self._is_meant is not None:
            return self._is_meant(op_name)
        if self.kind == "name":
            return op_name == self.text
        wanted = self.text.lower()
        component = op_name.rpartition("/")[2]
        head, dash, _ = component.rpartition("-")
        own = head if dash else component
        if wanted in own.lower():
            return True
        # a parameter is named by its owner, not by an operator: "layers.add.weight" is no addition
        if op_type == "Parameter":
            return False
        return any(is_called(known, wanted) for known in {own, op_type})
