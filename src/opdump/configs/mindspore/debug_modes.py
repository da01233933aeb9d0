"""`op_debug_mode` of data_dump.json: records operators that overflow, or the one that fails, instead of the selected ones.

docs/config.md and docs/async-dump.md#unsupported-settings describe what the modes coerce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from opdump.configs.shared.json_text import Section
from opdump.plan import Captures, OverflowKind, StepSet

_MEANING: Final = "0 to dump as selected, 3 for operators that overflow (1 of the AI Core, 2 of atomic additions), 4 for the one that fails"
_KINDS: Final[Mapping[int, frozenset[OverflowKind]]] = MappingProxyType(
    {1: frozenset({"aicore"}), 2: frozenset({"atomic"}), 3: frozenset({"aicore", "atomic"})}
)


@dataclass(frozen=True, slots=True)
class Debug:
    """The meaning of an `op_debug_mode`."""

    mode: int
    captures: Captures
    overflow_kinds: frozenset[OverflowKind] = _KINDS[3]

    def coerced(
        self, common: Section, steps: StepSet, dump_mode: int, input_output: int, sample_num: int | None
    ) -> list[str]:
        """One sentence for each setting that the mode overrides."""
        if self.captures == "data":
            return []
        because = f"op_debug_mode is {self.mode}"
        found = []
        if dump_mode:
            found.append(f"{common.where}.dump_mode is taken as 0: {because}, and every operator is checked")
        if input_output:
            found.append(f"{common.where}.input_output is taken as 0: {because}")
        if self.captures == "exception":
            if steps != StepSet.all():
                found.append(
                    f'{common.where}.iteration is taken as "all": {because}, and its step is not known in advance'
                )
            if common.values.get("saved_data", "tensor") != "tensor":
                found.append(f'{common.where}.saved_data is taken as "tensor": {because}')
            if sample_num is not None:
                found.append(f"{common.where}: sample_mode is taken as 0: {because}")
        return found


def debug_settings(common: Section) -> Debug:
    """The meaning of the section's `op_debug_mode`. Raises ConfigError for a value outside of 0 to 4."""
    if not common.has("op_debug_mode"):
        return Debug(0, "data")
    mode = common.unsigned("op_debug_mode", _MEANING)
    if mode > 4:
        raise common.wrong("op_debug_mode", f"op_debug_mode 0, 3 or 4: {_MEANING}")
    if mode in _KINDS:
        return Debug(mode, "overflow", _KINDS[mode])
    return Debug(mode, "exception" if mode == 4 else "data")
