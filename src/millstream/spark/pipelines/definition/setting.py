"""Settings of a pipeline: the allowed values of each, for TOML and Python alike."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

from millstream.errors import InvalidPipeline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SettingKind:
    """Allowed values of a setting, as text and as a check."""

    expected: str
    is_allowed: Callable[[Any], bool]
    normalize: Callable[[Any], Any] = lambda value: value
    """Converts an allowed value to the one that is stored: lists become tuples."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(map(_is_text, value))
        and len(set(value)) == len(value)
    )


def _is_options(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_text(name) and isinstance(item, str | int | float) for name, item in value.items()
    )


def option_text(value: str | float) -> str:
    """Return the value of an option in Spark's text form."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(value: Mapping[str, str | float]) -> Mapping[str, str]:
    return MappingProxyType({name: option_text(item) for name, item in value.items()})


_INTERVAL = re.compile(r"[0-9]{1,9} (millisecond|second|minute|hour|day)s?")

TEXT = SettingKind("a non-empty string", _is_text)
FLAG = SettingKind("true or false", lambda value: isinstance(value, bool))
COUNT = SettingKind(
    "an integer of at least 1",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
)
TEXTS = SettingKind("a list of distinct strings", _is_texts, tuple)
OPTIONS = SettingKind("a table of strings, numbers and booleans", _is_options, _options)
INTERVAL = SettingKind(
    'an interval such as "10 minutes": a number of milliseconds, seconds, minutes, hours or days',
    lambda value: isinstance(value, str) and bool(_INTERVAL.fullmatch(value)),
)
VIEW_NAME = SettingKind(
    "a name for SQL without quotes: letters, digits and _, not starting with a digit",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value)),
)
FILE_NAME = SettingKind(
    "a name of letters, digits, '.', '_' and '-' that does not start with a dot",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[\w-][\w.-]{0,99}", value, re.A)),
)
TRIGGER = SettingKind(
    f'"available-now", or {INTERVAL.expected}',
    lambda value: value == "available-now" or INTERVAL.is_allowed(value),
)
FUNCTION = SettingKind("a function", callable)


def choice(*allowed: str) -> SettingKind:
    """Return the kind of a setting that is one of `allowed`."""
    return SettingKind(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def choices(*allowed: str) -> SettingKind:
    """Return the kind of a setting that is a list of elements of `allowed`."""
    return SettingKind(
        f"a list with elements of {', '.join(allowed)}",
        lambda value: _is_texts(value) and set(value) <= set(allowed),
        tuple,
    )


def value_of(kind: type) -> SettingKind:
    """Return the kind of a setting that has settings of its own."""
    return SettingKind(f"a {kind.__name__}", lambda value: isinstance(value, kind))


NAME = ""


def setting(kind: SettingKind, *, key: str | None = None, **default: Any) -> Any:
    """Declare a setting: its kind and its default.

    `key` is the key in TOML if it is not the name of the field; `NAME` means the name of the table
    that contains the other settings.
    """
    return dataclasses.field(metadata={"kind": kind, "key": key}, **default)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose fields are settings."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def keys_of(kind: Any) -> dict[str, str]:
    """Return the fields that are settings, by their keys in TOML."""
    return {
        field.metadata["key"] or field.name: field.name
        for field in dataclasses.fields(kind)
        if "kind" in field.metadata and field.metadata["key"] != NAME
    }


def check_settings(value: Any, section: str) -> None:
    """Check and normalize every setting of a frozen value that is being created.

    A setting whose default is `None` is optional. Raises `InvalidPipeline` with the path of the
    setting, its value and the allowed values.
    """
    for field in dataclasses.fields(value):
        if "kind" not in field.metadata:
            continue
        setting_value = getattr(value, field.name)
        if setting_value is None and field.default is None:
            continue
        kind: SettingKind = field.metadata["kind"]
        if not kind.is_allowed(setting_value):
            key = field.metadata["key"]
            path = f"the name of {section}" if key == NAME else f"{section}.{key or field.name}"
            raise InvalidPipeline(f"{path} must be {kind.expected}, got {setting_value!r}")
        object.__setattr__(value, field.name, kind.normalize(setting_value))
