"""`dump_step` of TensorFlow: which iterations are dumped.

>>> str(parse_dump_step("0|5|10-20", "npu_dump.json"))
'0|5|10-20'

The rule is that of the graph engine, which is stricter than the adapter's (docs/tensorflow-config.md#dump_step).
"""

from __future__ import annotations

import re
from typing import Final

from opdump.configs.tensorflow.error import TensorflowConfigError
from opdump.plan import StepSet

MOST_ITEMS: Final = 100
LARGEST_STEP: Final = 2**31 - 1

_TOO_MANY: Final = "dump_step only support dump <= 100 sets of data"
_NO_STEP: Final = "dump_step string style is error, correct example:'0|5|10|50-100'"
_BACKWARDS: Final = "in range steps, the first step is >= second step, correct example:'0|5|10-20'"

_ITEM = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def parse_dump_step(text: str, where: str) -> StepSet:
    """Parse up to 100 items joined by `|`, each a number up to 2147483647 or a range whose end is larger than its start.

    The empty text means every step. Items may overlap, repeat, and come in any order.

    Raises TensorflowConfigError for anything else: signs, spaces, empty items, a range of one step.
    """
    if not text:
        return StepSet.all()
    items = text.split("|")
    if len(items) > MOST_ITEMS:
        raise _bad(text, where, _TOO_MANY, f"found {len(items)} items; join neighbours to ranges such as 50-100")
    for item in items:
        found = _ITEM.fullmatch(item)
        if found is None:
            raise _bad(text, where, _NO_STEP, f"the item {_shortened(item)!r} is neither a number nor a closed range")
        first, last = found[1].lstrip("0") or "0", found[2] and (found[2].lstrip("0") or "0")
        for number in filter(None, (first, last)):
            # Python refuses to convert thousands of digits, so their number is checked first.
            if len(number) > len(str(LARGEST_STEP)) or int(number) > LARGEST_STEP:
                raise _bad(text, where, _NO_STEP, f"{_shortened(number)} is beyond the largest step, {LARGEST_STEP}")
        if last and int(first) >= int(last):
            advice = f"write {first}" if first == last else f"write {last}-{first}"
            raise _bad(text, where, _BACKWARDS, f"the item {_shortened(item)!r} has no end after its start; {advice}")
    return StepSet.parse(text)


def _bad(text: str, where: str, words: str, reason: str) -> TensorflowConfigError:
    return TensorflowConfigError(f"{where}: dump_step: found {_shortened(text)!r}: {words} ({reason})")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
