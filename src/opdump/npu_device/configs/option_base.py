"""Options that are checked on assignment.

>>> class Colours(OptionGroup):
...     OPTIONS = {"red": Option(False, (True, False))}
>>> Colours().red = 7
Traceback (most recent call last):
    ...
TypeError: Expected bool, got int

The checks, their messages and the texts of values are those of the TensorFlow adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its default, and its allowed values, None for any."""

    default: Any = None
    allowed: tuple[Any, ...] | None = None
    is_deprecated: bool = False

    def check(self, value: object) -> None:
        """Raises TypeError for a value whose type differs from that of the default, ValueError for any other value outside the list.

        Values are compared, so 1 and 0 are accepted for True and False. The messages are those of the original.
        """
        if self.allowed is None or value in self.allowed:
            return
        if self.default is not None and not isinstance(value, type(self.default)):
            raise TypeError(f"Expected {type(self.default).__name__}, got {type(value).__name__}")
        raise ValueError(f"'{value}' not in optional list {list(self.allowed)}")


class OptionGroup:
    """Options and groups of options, as attributes. A subclass defines them in `OPTIONS` and `GROUPS`."""

    OPTIONS: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    GROUPS: ClassVar[Mapping[str, type[OptionGroup]]] = MappingProxyType({})

    def __init__(self) -> None:
        for name, option in self.OPTIONS.items():
            self.__dict__[name] = option.default
        for name, group in self.GROUPS.items():
            self.__dict__[name] = group()

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_name(name, ValueError)
        if name in self.GROUPS:
            if not isinstance(value, self.GROUPS[name]):
                raise TypeError(f"Expected {self.GROUPS[name].__name__}, got {type(value).__name__}")
        else:
            self.OPTIONS[name].check(value)
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        """Called only for names that are not options."""
        if not name.startswith("__"):
            self._check_name(name, AttributeError)
        raise AttributeError(name)

    def _check_name(self, name: str, error: type[Exception]) -> None:
        known = [*self.OPTIONS, *self.GROUPS]
        if name not in known:
            raise error(f"{type(self).__name__} has no option {name}, all options {known}")

    def as_dict(self) -> dict[str, str]:
        """The texts of all options that are not None, including those of groups. Flags are "1" and "0".

        Prints a line for each deprecated option that was set, like the original.
        """
        texts = {}
        for name, option in self.OPTIONS.items():
            value = self.__dict__[name]
            if value is None:
                continue
            if option.is_deprecated:
                print(f"[warning][opdump] option {name} of npu_device is deprecated, and has no effect here")  # noqa: T201  # the original prints, too
            texts[name] = str(int(value)) if isinstance(value, bool) else str(value)
        for name in self.GROUPS:
            texts |= self.__dict__[name].as_dict()
        return texts


class AnyOptions(OptionGroup):
    """Options unrelated to dumps. They are kept, without effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
