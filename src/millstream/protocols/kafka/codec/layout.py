"""Layout of one version of a message or struct, derived from its declaration."""

from __future__ import annotations

import dataclasses
from typing import Any

from millstream.protocols.kafka.codec.declaration import FieldDeclaration
from millstream.protocols.kafka.codec.primitives import (
    Array,
    Blob,
    Fixed,
    RecordData,
    Text,
    Uuid,
    WireType,
)


@dataclasses.dataclass(frozen=True, slots=True)
class LayoutField:
    """A field in one version."""

    name: str
    kind: WireType
    is_nullable: bool
    default: Any
    """`dataclasses.MISSING` if there is none."""
    tag: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class MessageLayout:
    """The fields of one version, in the order of their bytes."""

    plain: tuple[LayoutField, ...]
    tagged: tuple[LayoutField, ...]
    absent: tuple[LayoutField, ...]
    """Fields of other versions; they have their defaults."""


def layout_of(kind: Any, version: int) -> MessageLayout:
    """Derive the layout of `kind`, which is a message or a struct."""
    plain, tagged, absent = [], [], []
    for field in dataclasses.fields(kind):
        declared: FieldDeclaration = field.metadata["wire"]
        part = LayoutField(
            name=field.name,
            kind=declared.kind,
            is_nullable=_is_nullable(declared, version),
            default=field.default,
            tag=declared.tag,
        )
        if not declared.since <= version <= declared.until:
            absent.append(part)
        elif declared.tag is not None:
            tagged.append(part)
        else:
            plain.append(part)
    tagged.sort(key=lambda part: part.tag or 0)
    return MessageLayout(tuple(plain), tuple(tagged), tuple(absent))


def size_min(kind: WireType, version: int, *, is_flexible: bool) -> int:
    """Return the smallest encoded size of a value of `kind`."""
    match kind:
        case Fixed(size=size):
            return size
        case Uuid():
            return 16
        case Text():
            return 1 if is_flexible else 2
        case Blob() | RecordData() | Array():
            return 1 if is_flexible else 4
    # A struct that may be null takes one byte where it is.
    sizes = (
        1
        if part.is_nullable and isinstance(part.kind, type)
        else size_min(part.kind, version, is_flexible=is_flexible)
        for part in layout_of(kind, version).plain
    )
    return sum(sizes) + is_flexible


def _is_nullable(declared: FieldDeclaration, version: int) -> bool:
    if declared.nullable_since is not None:
        return version >= declared.nullable_since
    match declared.kind:
        case Text(is_nullable=is_nullable) | Blob(is_nullable=is_nullable):
            return is_nullable
        case Array(is_nullable=is_nullable):
            return is_nullable
        case RecordData():
            return True
    return False
