"""Declaration of one topic config, and parsing of its values.

The table of all configs is in `topic_settings.py`; the documentation and the descriptions that
clients get are both made from it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from millstream.config.schema import LogConfig
from millstream.errors import InvalidConfig

N = TypeVar("N", int, float)

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

VALUE_SIZE_MAX = 64 * 1024
"""Longer values are refused unread: no list of replicas needs more."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,19}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


class SettingType(enum.Enum):
    """Type of a value. The names are Kafka's."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


class SettingEffect(enum.Enum):
    """The effect of a config on this node."""

    APPLIED = "applied"
    """It does what Kafka's documentation, or its meaning here, says."""

    ACCEPTED = "accepted"
    """It is validated, stored and shown, and nothing else; its meaning says why."""

    FIXED = "fixed"
    """It cannot be changed; its meaning says why."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One topic config: its allowed values, and its meaning here."""

    name: str
    kind: SettingType
    default: str
    """The value of a topic that does not set it, unless its node has another default."""
    effect: SettingEffect
    _: KW_ONLY
    meaning: str
    """What it does here, for clients and for the documentation."""
    kafka_default: str | None = None
    """Kafka's default, if ours differs; the meaning says why."""
    least: float | None = None
    most: float | None = None
    also: frozenset[int] = frozenset()
    """Numbers outside the limits that are allowed too."""
    values: tuple[str, ...] = ()
    """The allowed words; any if empty."""
    item: re.Pattern[str] | None = field(default=None, repr=False)
    """The pattern of a text, or of each item of a list."""
    item_hint: str = ""
    server_name: str | None = None
    """Kafka's name of the node's default for all topics."""
    log_field: str | None = None
    """The field of the node's `LogConfig` with this default, if the node can set it."""

    def default_of(self, node: LogConfig) -> str:
        """Return the value of a topic that does not set it, on a node with this log config.

        If the node sets no limit of its own, topics have the built-in one.
        """
        value = None if self.log_field is None else getattr(node, self.log_field)
        if value is None:
            return self.default
        return str(value.value if isinstance(value, enum.Enum) else value)

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.kind is SettingType.BOOLEAN:
            return self.default if self.effect is SettingEffect.FIXED else "true or false"
        if self.values:
            words = ", ".join(self.values)
            return f"a list of {words}" if self.kind is SettingType.LIST else f"one of {words}"
        if self.item_hint:
            return self.item_hint
        if self.least is None:
            return "any text"
        also = "".join(f"{number} or " for number in sorted(self.also))
        if self.least == self.most:
            return f"{also}{self.least}"
        return f"{also}between {self.least} and {self.most}"

    def parse(self, text: str) -> Any:
        """Return the value of `text`; raises `InvalidConfig` if it is not allowed.

        Like Kafka, this ignores spaces around a value, and the case of `true` and `false`.
        """
        if len(text) > VALUE_SIZE_MAX:
            raise InvalidConfig(
                f"{self.name} has {len(text)} characters, limit is {VALUE_SIZE_MAX}"
            )
        try:
            return _READERS[self.kind](self, text.strip())
        except ValueError:
            raise InvalidConfig(f"{self.name} must be {self.allowed}, got {text!r}") from None


def _read_boolean(setting: TopicSetting, text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    if setting.effect is SettingEffect.FIXED and word != setting.default:
        raise InvalidConfig(
            f"{setting.name} must be {setting.default}, got {text!r}: {setting.meaning}"
        )
    return word == "true"


def _read_string(setting: TopicSetting, text: str) -> str:
    if setting.values and text not in setting.values:
        raise ValueError(text)
    if setting.item and not setting.item.fullmatch(text):
        raise ValueError(text)
    return text


def _read_integer(setting: TopicSetting, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return _within_limits(setting, int(text))


def _read_double(setting: TopicSetting, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return _within_limits(setting, float(text))


def _within_limits(setting: TopicSetting, number: N) -> N:
    if number in setting.also:
        return number
    assert setting.least is not None
    assert setting.most is not None
    if not setting.least <= number <= setting.most:
        raise ValueError(number)
    return number


def _read_list(setting: TopicSetting, text: str) -> tuple[str, ...]:
    items = split_list(text)
    if len(set(items)) != len(items):
        raise InvalidConfig(f"{setting.name} has a duplicate item: {text!r}")
    if any(setting.values and item not in setting.values for item in items):
        raise ValueError(text)
    if setting.item and not all(setting.item.fullmatch(item) for item in items):
        raise ValueError(text)
    return items


def split_list(text: str) -> tuple[str, ...]:
    """Return the items of a list in Kafka's notation: separated by commas, stripped."""
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


_READERS: Mapping[SettingType, Callable[[TopicSetting, str], Any]] = {
    SettingType.BOOLEAN: _read_boolean,
    SettingType.STRING: _read_string,
    SettingType.INT: _read_integer,
    SettingType.LONG: _read_integer,
    SettingType.DOUBLE: _read_double,
    SettingType.LIST: _read_list,
}
