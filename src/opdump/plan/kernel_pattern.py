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
        """Parse one entry. All double quotes and spaces are removed first, as in MindSpore.

        `name-regex(E)` is an ECMAScript expression that must match the whole name. An entry with neither `/` nor `-op` is a type.
        Any other entry is a full name. The empty entry matches every operator.

        Raises ConfigError for an invalid expression, and for one whose matching time cannot be bounded.
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
                    f"kernels: {entry!r} is not a valid regular expression: {error}; "
                    f'write it like "name-regex(Default/.+)", with "[(]" for a literal parenthesis'
                ) from error
            return cls(entry, "regex", is_meant)
        if "/" not in entry and "-op" not in entry:
            return cls(entry, "type")
        return cls(entry, "name")

    def matches(self, op_name: str, op_type: str) -> bool:
        """Whether the operator is selected.

        `op_name` is the full scope with slashes; for a parameter (`op_type` "Parameter") it is the dotted name, with or without
        the prefix `Parameter.`, which is not part of the name. A type matches, case-insensitively, a part of the last component
        of the name before its final `-`, a part of any name that another framework has for the operator, or another complete name
        in its own framework (`linear` matches `addmm`).
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
        # a parameter is named by its owner, not by an operator: "layers.add.weight" is not an addition
        if op_type == "Parameter":
            return False
        return any(is_called(known, wanted) for known in {own, op_type})
