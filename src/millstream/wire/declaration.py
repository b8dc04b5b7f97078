"""Declaring a message: which fields it has, and in which versions.

A message is a frozen dataclass that knows nothing of bytes. Each field names its wire type and
the versions that have it; what follows from that for the bytes is worked out in `layout`. A
struct is a part of messages: its fields count in the versions of the message around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, dataclass_transform

from millstream.wire.primitives import WireType
from millstream.wire.source import Source

NEVER = 0x7FFF
"""The first flexible version of a message that has none."""

M = TypeVar("M")

_versions: dict[type, Versions] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """Which versions of a message Millstream speaks, and from which one on it is flexible."""

    first: int
    last: int
    flexible: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """What a field says of its place on the wire."""

    kind: WireType
    since: int
    until: int
    nullable_since: int | None
    tag: int | None


def wire(
    kind: WireType,
    *,
    since: int = 0,
    until: int = NEVER,
    default: Any = dataclasses.MISSING,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare a field: its wire type, and the first and last version that have it.

    The default is the field's value in versions that lack it. A field with a tag is sent only
    where its value is not the default. `nullable_since` is for a kind that has no null of its
    own in earlier versions, and for structs.
    """
    is_everywhere = since == 0 and until == NEVER and tag is None
    if default is dataclasses.MISSING and not is_everywhere:
        raise TypeError("a field that some version may lack needs a default")
    declared = Declared(kind, since, until, nullable_since, tag)
    return dataclasses.field(default=default, metadata={"wire": declared})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def message(versions: Versions) -> Callable[[type[M]], type[M]]:
    """Make a class a message: a frozen dataclass with a layout for each version."""

    def decorate(cls: type[M]) -> type[M]:
        made = struct(cls)
        _versions[made] = versions
        return made

    return decorate


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def struct(cls: type[M]) -> type[M]:
    """Make a class a part of messages: a frozen dataclass."""
    made = dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)
    made.__init__ = _quick_init(made)  # type: ignore[misc]
    return made


@cache
def twin_of(kind: Any) -> type:
    """Return a class whose instances lie in memory as those of `kind`, but can be changed.

    Filling the twin and then making it the frozen class takes a third of the time of setting each
    field of a frozen instance.
    """
    slots = tuple(field.name for field in dataclasses.fields(kind))
    return type(kind.__name__, (), {"__slots__": slots})


def _quick_init(kind: Any) -> Callable[..., None]:
    """Write and compile what the dataclass would have for `__init__`, by way of the twin."""
    source = Source()
    twin, made = source.constant("Twin", twin_of(kind)), source.constant("Kind", kind)
    parameters = []
    for field in dataclasses.fields(kind):
        has_default = field.default is not dataclasses.MISSING
        default = f"={source.constant('default', field.default)}" if has_default else ""
        parameters.append(f"{field.name}{default}")
    with source.block(f"def __init__(self, *, {', '.join(parameters)}):"):
        source.add(f"set_attribute(self, '__class__', {twin})")
        source.add(*(f"self.{field.name} = {field.name}" for field in dataclasses.fields(kind)))
        source.add(f"self.__class__ = {made}")
    names = {"set_attribute": object.__setattr__}
    return source.compile("__init__", f"{kind.__name__}-init", names)


def versions_of(kind: type) -> Versions:
    """Return the versions of a message."""
    try:
        return _versions[kind]
    except KeyError:
        raise TypeError(f"{kind.__name__} is not a message") from None
