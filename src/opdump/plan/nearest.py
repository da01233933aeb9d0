"""The existing names that a wrong name may have meant.

>>> nearest("conv_1", ["conv1", "fc", "Default/network-Net/conv1-Conv2d/convolution-op0"])
['conv1', 'Default/network-Net/conv1-Conv2d/convolution-op0']

The cost is bounded: of very many names, the first hundred thousand are compared by groups of three letters, and few of them
letter by letter.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import islice

_MOST_NAMES = 100_000
_MOST_COMPARED = 25
_ALIKE = 0.55
_SEPARATORS = re.compile(r"[^0-9a-z]+")
_LONGEST = 300
"""Maximum number of letters of a name that are compared."""


def nearest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names most similar to `name`, the best first; none if no name is similar."""
    wanted = _plain(name)
    groups = _groups(wanted)
    pool = dict.fromkeys(islice((each for each in names if each and each != name), _MOST_NAMES))
    if not wanted or not groups:
        return []
    scored = ((len(groups & _groups(_plain(each))) / (len(groups) + len(each) / 8), each) for each in pool)
    rough = heapq.nlargest(_MOST_COMPARED, ((score, each) for score, each in scored if score > 0))
    found = sorted(
        ((_likeness(wanted, each), each) for _, each in rough), key=lambda pair: (-pair[0], len(pair[1]), pair[1])
    )
    return [each for likeness, each in found if likeness >= _ALIKE][:most]


def with_nearest(text: str, name: str, names: Iterable[str]) -> str:
    """The sentence, followed by the nearest names if there are any."""
    found = nearest(name, names)
    return f"{text}; nearest: {', '.join(map(repr, found))}" if found else text


def _likeness(wanted: str, name: str) -> float:
    plain = _plain(name)
    # The end of a full name counts as the name, because users write it that way.
    tails = {plain, *(_plain(part) for part in re.split(r"[/]", name)[-2:])}
    ratio = max(SequenceMatcher(None, wanted, tail, autojunk=False).ratio() for tail in tails)
    within = wanted in plain or plain in wanted
    return max(ratio, 0.7 if within else 0.0) + (0.01 if plain == wanted else 0.0)


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name[:_LONGEST].lower())


def _groups(plain: str) -> set[str]:
    padded = f"^{plain}$"
    return {padded[place : place + 3] for place in range(len(padded) - 2)}
