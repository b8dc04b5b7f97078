"""Settings of a pipeline: what each may be, said once, for TOML and Python alike."""

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
    """What values a setting takes, in words and as a check."""

    needed: str
    is_allowed: Callable[[Any], bool]
    tidied: Callable[[Any], Any] = lambda value: value
    """Turns an allowed value into the one that is kept: lists become tuples."""


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
        _is_text(name) and isinstance(one, str | int | float) for name, one in value.items()
    )


def option_text(value: str | float) -> str:
    """Return the value of an option as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(value: Mapping[str, str | float]) -> Mapping[str, str]:
    return MappingProxyType({name: option_text(one) for name, one in value.items()})


_INTERVAL = re.compile(r"[0-9]{1,9} (millisecond|second|minute|hour|day)s?")

TEXT = SettingKind("a text", _is_text)
FLAG = SettingKind("true or false", lambda value: isinstance(value, bool))
COUNT = SettingKind(
    "a whole number of 1 or more",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
)
TEXTS = SettingKind("a list of texts, each once", _is_texts, tuple)
OPTIONS = SettingKind("a table of texts, numbers and booleans", _is_options, _options)
INTERVAL = SettingKind(
    'a time like "10 minutes": a number and milliseconds, seconds, minutes, hours or days',
    lambda value: isinstance(value, str) and bool(_INTERVAL.fullmatch(value)),
)
VIEW_NAME = SettingKind(
    "a name that SQL knows without quotes: letters, digits and _, no digit first",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value)),
)
FILE_NAME = SettingKind(
    "a name of letters, digits, '.', '_' and '-' that does not begin with a dot",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[\w-][\w.-]{0,99}", value, re.A)),
)
TRIGGER = SettingKind(
    f'"available-now", or {INTERVAL.needed}',
    lambda value: value == "available-now" or INTERVAL.is_allowed(value),
)
FUNCTION = SettingKind("a function", callable)


def choice(*allowed: str) -> SettingKind:
    """Return the kind of a setting that is one of a few words."""
    return SettingKind(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def choices(*allowed: str) -> SettingKind:
    """Return the kind of a setting that is some of a few words."""
    return SettingKind(
        f"a list of some of {', '.join(allowed)}",
        lambda value: _is_texts(value) and set(value) <= set(allowed),
        tuple,
    )


def value_of(kind: type) -> SettingKind:
    """Return the kind of a setting that is a value with settings of its own."""
    return SettingKind(f"a {kind.__name__}", lambda value: isinstance(value, kind))


NAME = ""


def setting(kind: SettingKind, *, key: str | None = None, **default: Any) -> Any:
    """Declare a setting: what it may be, and its default.

    `key` is what TOML calls it, where that is not the name of the field; `NAME` is the name of the
    table that the others are in.
    """
    return dataclasses.field(metadata={"kind": kind, "key": key}, **default)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen value whose fields are settings."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def keys_of(kind: Any) -> dict[str, str]:
    """Return the fields that are settings, by the key that TOML has for them."""
    return {
        field.metadata["key"] or field.name: field.name
        for field in dataclasses.fields(kind)
        if "kind" in field.metadata and field.metadata["key"] != NAME
    }


def check_settings(value: Any, place: str) -> None:
    """Check every setting of a frozen value that is being made, and tidy it.

    An optional setting, one whose default is `None`, may be left out. Raises `InvalidPipeline` with
    the place of the setting, what was found and what is needed.
    """
    for field in dataclasses.fields(value):
        if "kind" not in field.metadata:
            continue
        found = getattr(value, field.name)
        if found is None and field.default is None:
            continue
        kind: SettingKind = field.metadata["kind"]
        if not kind.is_allowed(found):
            key = field.metadata["key"]
            what = f"the name of {place}" if key == NAME else f"{place}.{key or field.name}"
            raise InvalidPipeline(f"{what} is {found!r}, needed is {kind.needed}")
        object.__setattr__(value, field.name, kind.tidied(found))
