"""Reads a fusion rule file, which maps operators of the device to those of the framework.

The file is the JSON text that ATC makes of an offline model (`{"graph": [{"op": [...]}]}`); see docs/msaccucmp.md#fusion-rules.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opdump.msaccucmp.comparison.algorithms import IncomparableError
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log

_ORIGINAL_NAMES: Final = "_datadump_original_op_names"
_L1_NUMBER: Final = "_L1_fusion_sub_graph_no"
_ORIGIN_NAME: Final = "_datadump_origin_name"
_ORIGIN_INDEX: Final = "_datadump_origin_output_index"
_ORIGIN_FORMATS: Final = ("_datadump_origin_format", "origin_format")


@dataclass(frozen=True, slots=True)
class OutputRule:
    """The origin of an output of an operator: an output of an operator of the framework, and its format there.

    `dtype` is the type of its elements on the device, such as DT_INT8.
    """

    name: str
    index: int | None
    format: str
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class RuleOperator:
    """An operator of the device. `number` is its position in the model, by which `-r` and `-s` select.

    `originals`: the operators of the framework that it replaces, without empty names. `key`: operators with the same one belong
    together. `is_l1`: they were fused in the L1 buffer, where only the first and the last leave meaningful data.
    """

    name: str
    op_type: str
    number: int
    inputs: tuple[str, ...]
    outputs: tuple[OutputRule, ...]
    originals: tuple[str, ...]
    key: str
    is_l1: bool


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Operators of the device that together replace the same operators of the framework. `index`: its position in the table."""

    index: int
    operators: tuple[RuleOperator, ...]

    @property
    def is_l1(self) -> bool:
        return len(self.operators) > 1 and self.operators[0].is_l1

    @property
    def key(self) -> str:
        return self.operators[0].key

    @property
    def names(self) -> str:
        return ",".join(operator.name for operator in self.operators)

    @property
    def originals(self) -> tuple[str, ...]:
        if self.is_l1:
            return tuple(name for operator in self.operators for name in operator.originals)
        return self.operators[0].originals

    @property
    def original_names(self) -> str:
        """The originals as in the table; empty if there are none."""
        if self.is_l1:
            return ",".join(dict.fromkeys(",".join(operator.originals) for operator in self.operators))
        return ",".join(self.originals)

    @property
    def is_one_to_one(self) -> bool:
        (operator, *others) = self.operators
        return not others and len(operator.originals) == 1 and not operator.is_l1


@dataclass(frozen=True, slots=True)
class FusionRules:
    """All operators of a rule file, in groups."""

    groups: tuple[RuleGroup, ...]
    operators: Mapping[str, RuleOperator]
    group_of: Mapping[str, RuleGroup]


def read_rules(path: str) -> FusionRules:
    """The rules in the file. Raises CommandError for an invalid rule file, AbortError if the original ends unexpectedly."""
    document = _load(path)
    if document is None or isinstance(document, (bool, int, float)):
        raise AbortError(f"{path} holds {document!r}; an object was expected")
    try:
        return _rules(_Reader(path), document)
    except (TypeError, AttributeError, LookupError, ValueError, RecursionError) as error:
        raise AbortError(f"{path} is not a rule file: a value in it has the wrong type ({error})") from error


def _rules(reader: _Reader, document: Any) -> FusionRules:
    members: dict[str, list[RuleOperator]] = {}
    for graph in reader.list(document, "graph"):
        for entry in reader.list(graph, "op"):
            operator = reader.operator(entry)
            members.setdefault(operator.key, []).append(operator)
    groups = tuple(RuleGroup(index, _without_doubles(found)) for index, found in enumerate(members.values()))
    return FusionRules(
        groups,
        {operator.name: operator for group in groups for operator in group.operators},
        {operator.name: group for group in groups for operator in group.operators},
    )


def _without_doubles(operators: Sequence[RuleOperator]) -> tuple[RuleOperator, ...]:
    return tuple({operator.name: operator for operator in operators}.values())


def _load(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(ExitCode.BAD_JSON, f"{path} is not JSON: {error}") from error


class _Reader:
    """Parses the document and reports missing parts."""

    def __init__(self, path: str) -> None:
        self._name = os.path.basename(path)

    def _member(self, value: Any, name: str) -> Any:
        try:
            present = name in value
        except TypeError as error:
            raise AbortError(f"{self._name}: found {value!r}, expected an object") from error
        if not present:
            raise CommandError(ExitCode.BAD_JSON, f"{self._name}: {name!r} is missing")
        try:
            return value[name]
        except (TypeError, LookupError) as error:
            raise AbortError(f"{self._name}: found {value!r}, expected an object") from error

    def _typed(self, value: Any, name: str, kind: type, what: str) -> Any:
        found = self._member(value, name)
        if not isinstance(found, kind):
            raise CommandError(ExitCode.BAD_JSON, f"{self._name}: {name!r} is {found!r}, expected a JSON {what}")
        return found

    def list(self, value: Any, name: str) -> Sequence[Any]:
        found: Sequence[Any] = self._typed(value, name, list, "array")
        return found

    def _optional(self, value: Any, name: str) -> Any:
        return self._typed(value, name, list, "array") if name in value else ()

    def operator(self, entry: Any) -> RuleOperator:
        name: str = self._typed(entry, "name", str, "string")
        op_type: str = self._typed(entry, "type", str, "string")
        number: int = self._typed(entry, "id", int, "integer") if "id" in entry else 0
        attributes = self._attributes(entry)
        originals = [name]
        if _ORIGINAL_NAMES in attributes:
            listed = self._member(attributes[_ORIGINAL_NAMES], "list")
            originals = list(self.list(listed, "s")) if "s" in listed else []
        l1_number = attributes[_L1_NUMBER].get("s", "") if _L1_NUMBER in attributes else ""
        named = tuple(str(original) for original in originals if original)
        return RuleOperator(
            name,
            op_type,
            number,
            self._inputs(entry.get("input", ())),
            tuple(self._output(each) for each in self._optional(entry, "output_desc")),
            named,
            _key(name, named, l1_number),
            bool(l1_number),
        )

    def _inputs(self, listed: Any) -> tuple[str, ...]:
        """The sources of the inputs (`operator:output`), without inputs that have none."""
        if not isinstance(listed, Iterable) or not all(isinstance(item, str) for item in listed):
            raise AbortError(f"{self._name}: an input is {listed!r}, expected a list of strings")
        return tuple(item for item in listed if item and not item.endswith(":-1"))

    def _attributes(self, value: Any) -> dict[str, Any]:
        return {
            self._member(attribute, "key"): self._member(attribute, "value")
            for attribute in self._optional(value, "attr")
        }

    def _output(self, entry: Any) -> OutputRule:
        attributes = self._attributes(entry)
        formats = [attributes[key].get("s", "") for key in _ORIGIN_FORMATS if key in attributes]
        return OutputRule(
            attributes.get(_ORIGIN_NAME, {}).get("s", ""),
            attributes.get(_ORIGIN_INDEX, {}).get("i"),
            next(iter(formats), ""),
            str(entry.get("dtype", "")),
        )


def _key(name: str, originals: tuple[str, ...], l1_number: str) -> str:
    if l1_number:
        return f"L1 {l1_number}"
    if len(originals) == 1:
        return originals[0]
    if originals:
        return str(uuid.uuid3(uuid.NAMESPACE_DNS, "".join(originals)))
    return name


# Selects operators of a model by their `id` in the rules: `-r start,end,step` and `-s index,index`.

_NUMBER: Final = re.compile(r"\s*[0-9]+\s*")
_LAST: Final = -1


def choose_groups(groups: Sequence[RuleGroup], count: int, text: str | None, listed: str | None) -> Sequence[RuleGroup]:
    """The groups that the options select, out of `count`. Raises CommandError."""
    if text:
        start, end, step = _range(text, count)
        chosen = set(range(start, end + 1, step))
    elif listed:
        chosen = _select(listed, count)
    else:
        return groups
    return [group for group in groups if any(operator.number in chosen for operator in group.operators)]


def check_choice(text: str | None, listed: str | None) -> None:
    """Raise CommandError if an option has an invalid form."""
    if text:
        _numbers(text)
    if listed:
        _indices(listed)


def _numbers(text: str) -> list[int | None]:
    parts = text.split(",")
    if len(parts) != 3 or not all(not part or _NUMBER.fullmatch(part) or part.strip() == str(_LAST) for part in parts):
        raise CommandError(ExitCode.BAD_PARAMETER, f"-r {text!r} is not of the form start,end,step")
    return [int(part) if part else None for part in parts]


def _range(text: str, count: int) -> tuple[int, int, int]:
    start, end, step = _numbers(text)
    start = 1 if start is None else start
    end = count if end is None or end == _LAST else end
    step = 1 if step is None else step
    for name, value, lowest, highest in (("start", start, 1, count), ("end", end, start, count)):
        if not lowest <= value <= highest:
            raise CommandError(
                ExitCode.BAD_INDEX, f"-r {text}: the {name} {value} is not between {lowest} and {highest}"
            )
    if not 1 <= step < max(count, 2):
        raise CommandError(ExitCode.BAD_INDEX, f"-r {text}: the step {step} is not between 1 and {count - 1}")
    return start, end, step


def _indices(text: str) -> set[int]:
    parts = [part for part in text.split(",") if part.strip()]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise CommandError(ExitCode.BAD_PARAMETER, f"-s {text!r} is not of the form index,index")
    return {int(part) for part in parts}


def _select(text: str, count: int) -> set[int]:
    chosen = _indices(text)
    too_large = sorted(index for index in chosen if index > count)
    if too_large:
        raise CommandError(ExitCode.BAD_PARAMETER, f"-s {text}: {too_large} are not between 1 and {count}")
    return chosen


# Finds the operators between a quantisation and its inverse: their results have no counterpart in the framework.

_QUANTISES: Final = ("_quant_layer", "DT_INT8")
_RESTORES: Final = ("_dequant_layer", "DT_FLOAT16")


def quantised_operators(rules: FusionRules) -> frozenset[str]:
    """The names of operators that read a quantised tensor and do not restore it."""
    gives: dict[str, bool] = {}
    for operator in rules.operators.values():
        sources = [text.rpartition(":")[0] for text in operator.inputs]
        restores = _is_like(operator, _RESTORES)
        passes = bool(sources) and all(gives.get(source, False) for source in sources)
        gives[operator.name] = _is_like(operator, _QUANTISES) or (passes and not restores)
    return frozenset(
        operator.name
        for operator in rules.operators.values()
        if not _is_like(operator, _RESTORES)
        and any(gives.get(text.rpartition(":")[0], False) for text in operator.inputs)
    )


def _is_like(operator: RuleOperator, sign: tuple[str, str]) -> bool:
    """Whether the name indicates this operation, and the first output has the type for it."""
    part, dtype = sign
    named = any(part in name for name in (operator.name, *operator.originals))
    return named and bool(operator.outputs) and operator.outputs[0].dtype == dtype


# Finds the counterpart of a tensor of the device: an output of an operator of the framework.
#
# The counterpart of an input is that of the output that it reads. Cast and TransData only pass on their inputs.

_PASSING: Final = frozenset({"Cast", "TransData"})
_INVALID_INPUT: Final = "The input information ({}) is invalid. {}"


@dataclass(frozen=True, slots=True)
class Origin:
    """An output of an operator of the framework, and its format there (empty if unknown)."""

    operator: str
    index: int
    format: str


def origin_of_input(rules: FusionRules, operator: RuleOperator, index: int) -> Origin | None:
    """The counterpart of the input; None if the rules do not have it. Raises IncomparableError if they are invalid."""
    seen: set[tuple[str, int]] = set()
    while True:
        operator, index = _source(rules, operator, index)
        if (operator.name, index) in seen:
            raise IncomparableError(
                ExitCode.BAD_JSON, "", f"{operator.name} reads its own output through other operators"
            )
        seen.add((operator.name, index))
        if operator.op_type not in _PASSING:
            return _own_origin(rules, operator, index)


def origin_of_output(rules: FusionRules, operator: RuleOperator, index: int) -> Origin | None:
    """The counterpart of the output; None if the rules do not have it. Raises IncomparableError if they are invalid."""
    if operator.op_type in _PASSING:
        return origin_of_input(rules, operator, index)
    return _own_origin(rules, operator, index)


def _source(rules: FusionRules, operator: RuleOperator, index: int) -> tuple[RuleOperator, int]:
    """The operator that makes the input, and the number of its output."""
    if index >= len(operator.inputs):
        raise IncomparableError(
            ExitCode.BAD_INDEX,
            "",
            f"{operator.name} has {len(operator.inputs)} inputs in the rules, but no {index}",
        )
    text = operator.inputs[index]
    parts = text.split(":")
    if len(parts) != 2:
        raise IncomparableError(ExitCode.BAD_JSON, _INVALID_INPUT.format(text, "It only supports op_name:index."))
    name, number = parts[0], parts[1].strip()
    if not name:
        raise IncomparableError(ExitCode.BAD_JSON, _INVALID_INPUT.format(text, "The input operator name is empty."))
    if not number.isdecimal():
        raise IncomparableError(
            ExitCode.BAD_JSON, _INVALID_INPUT.format(text, "The input index only supports numbers.")
        )
    found = rules.operators.get(name)
    if found is None:
        raise IncomparableError(ExitCode.BAD_JSON, f'There is no "{name}" in the fusion rule file.')
    return found, int(number)


def _own_origin(rules: FusionRules, operator: RuleOperator, index: int) -> Origin | None:
    is_one_to_one = rules.group_of[operator.name].is_one_to_one
    if not operator.outputs:
        if is_one_to_one:
            return Origin(operator.originals[0], index, "")
        log("WARNING", f"the rules describe no output of {operator.name}")
        return None
    if index >= len(operator.outputs):
        index = 0
    described = operator.outputs[index]
    name = described.name
    if not name and is_one_to_one:
        name = operator.originals[0]
    if not name:
        log("WARNING", f"the rules do not name the origin of {operator.name}:output:{index}")
        return None
    return Origin(name, index if described.index is None else described.index, described.format)
