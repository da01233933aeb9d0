"""Names that match nothing: the existing names that each may have meant, and the warnings about those of a `dump_list`.

>>> nearest("conv_1", ["conv1", "fc", "Default/network-Net/conv1-Conv2d/convolution-op0"])
['conv1', 'Default/network-Net/conv1-Conv2d/convolution-op0']
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import chain, islice
from typing import Literal

from opdump.plan.dialects import words_of
from opdump.plan.selection import ModelSelection, OperatorRange

# The nearest names. The cost is bounded: of very many names, the first hundred thousand are compared by groups of three letters, and
# few of them letter by letter.

_MOST_NAMES = 100_000
_MOST_COMPARED = 25
_ALIKE = 0.55
_SEPARATORS = re.compile(r"[^0-9a-z]+")
_LONGEST = 300
"""Maximum number of letters of a name that are compared."""


def nearest(name: str, names: Iterable[str], most: int = 3, *, alike: float = _ALIKE) -> list[str]:
    """The names most similar to `name`, the best first; none if none is similar by at least `alike`, from 0 to 1. Case is ignored."""
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
    return [each for likeness, each in found if likeness >= alike][:most]


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


# Tracks which names of a `dump_list` matched, and words the warnings about the others.

Kind = Literal["model_name", "layer", "watcher_nodes", "opname_range", "opname_blacklist", "optype_blacklist"]
ChoseNothing = Literal["", "names", "ranges"]
"""Which part of a list is the reason that it selected nothing: its names, its ranges, or neither."""
_MOST_SEEN = 100_000


class ListMatches:
    """Collects the matches of the entries of a `dump_list` or, in a TensorFlow configuration, of its `dump_layer`.

    `what` describes what a name refers to here ("operator or module that ran").
    """

    def __init__(self, models: Sequence[ModelSelection] | None, dialect: str, what: str = "operator that ran") -> None:
        self._models = tuple(models or ())
        self._what = what
        self._list_key = words_of(dialect).list_key
        self._wanted = {id(entry): _names_in(entry) for entry in self._models}
        """The matched operator names of each entry."""
        self._types = {id(entry): frozenset(each.name for each in entry.type_exclusions) for entry in self._models}
        self._met: set[tuple[int, str]] = set()
        self._met_types: set[tuple[int, str]] = set()
        self._opened: set[OperatorRange] = set()
        self._model_names: dict[str, None] = {}
        self._used_entries: set[int] = set()
        self._seen: dict[str, Collection[str]] = {}
        self._seen_types: dict[str, None] = {}

    def model(self, names: Iterable[str]) -> None:
        """Process a model; `names` are all its names."""
        names = list(names)
        self._model_names.update(dict.fromkeys(names))
        for entry in self._models:
            if entry.model_name is None or entry.model_name in names:
                self._used_entries.add(id(entry))

    def operator(self, entries: Sequence[ModelSelection], op_name: str, names: Collection[str], op_type: str) -> None:
        """Process an operator that these entries may select; `names` are all its names."""
        if len(self._seen) < _MOST_SEEN:
            self._seen[op_name] = names
            self._seen_types[op_type] = None
        for entry in entries:
            key = id(entry)
            self._used_entries.add(key)
            wanted = self._wanted.get(key)
            if wanted and not wanted.isdisjoint(names):
                self._met.update((key, name) for name in names if name in wanted)
            if op_type in self._types.get(key, ()):
                self._met_types.add((key, op_type))

    def opened(self, ranges: Iterable[OperatorRange]) -> None:
        """Note that these ranges contained an operator."""
        self._opened.update(ranges)

    @property
    def models_seen(self) -> tuple[str, ...]:
        """Names of the models that appeared."""
        return tuple(self._model_names)

    @property
    def chose_nothing(self) -> ChoseNothing:
        """Why the list selected none of the operators that ran; empty if it selected some, or if none ran."""
        used = [entry for entry in self._models if id(entry) in self._used_entries]
        if not self._seen or not used or any(self._chose(entry) for entry in used):
            return ""
        known = {key for key, _ in self._met}
        return "ranges" if any(entry.ranges and id(entry) in known for entry in used) else "names"

    def _chose(self, entry: ModelSelection) -> bool:
        """Whether the entry selects everything, or one of its names or ranges matched an operator."""
        if entry.layers is None and not entry.ranges:
            return True
        named = any((id(entry), name) in self._met for name in entry.layers or ())
        return named or not self._opened.isdisjoint(entry.ranges)

    def texts(self) -> list[str]:
        """The unmatched names as sentences, each with the nearest names that existed."""
        if not self._seen and not self._model_names:
            return []  # nothing ran at all: that is another reason
        found: list[str] = []
        for name in self._wanted_models():
            if name not in self._model_names:
                there = ", ".join(map(repr, list(self._model_names)[:8])) or "none"
                text = f"{self._key('model_name')}: no model is called {name!r}; there are {there}"
                found.append(with_nearest(text, name, self._model_names))
        for entry in self._models:
            if entry.model_name is None or entry.model_name in self._model_names:
                found += self._texts_of(entry)
        return list(dict.fromkeys(found))

    def _texts_of(self, entry: ModelSelection) -> list[str]:
        of_names: list[tuple[Kind, str]] = [
            *(("layer", name) for name in entry.layers or ()),
            *(("watcher_nodes", name) for name in entry.watcher_nodes),
            *(("opname_range", name) for each in entry.ranges for name in (each.begin, each.end)),
            *(("opname_blacklist", each.name) for each in entry.name_exclusions),
        ]
        found = []
        for kind, name in of_names:
            if (id(entry), name) not in self._met:
                text = f"{self._key(kind)}: {name!r} is not an {self._what}"
                found.append(with_nearest(text, name, chain(self._seen, *self._seen.values())))
        for each in entry.type_exclusions:
            if (id(entry), each.name) not in self._met_types:
                text = f"{self._key('optype_blacklist')}: {each.name!r} is not the type of any operator that ran"
                found.append(with_nearest(text, each.name, self._seen_types))
        for each_range in entry.ranges:
            known = all((id(entry), name) in self._met for name in (each_range.begin, each_range.end))
            if known and each_range not in self._opened:
                found.append(
                    f"{self._key('opname_range')}: {each_range.end!r} runs before {each_range.begin!r}, so the range is empty; "
                    f'write "begin": "{each_range.end}", "end": "{each_range.begin}"'
                )
        return found

    def _key(self, kind: Kind) -> str:
        """The place of such a name, in the words of the configuration."""
        return self._list_key.format(kind)

    def _wanted_models(self) -> list[str]:
        return list(dict.fromkeys(entry.model_name for entry in self._models if entry.model_name))


def _names_in(entry: ModelSelection) -> frozenset[str]:
    return frozenset(
        {
            *(entry.layers or ()),
            *entry.watcher_nodes,
            *(name for each in entry.ranges for name in (each.begin, each.end)),
            *(each.name for each in entry.name_exclusions),
        }
    )
