"""Declarations of messages: their fields, and the versions that have them.

A message is a frozen dataclass that knows nothing about bytes. Each field names its wire type and
the versions that have it; `layout` derives the bytes from that. A struct is a part of messages: the
versions of its fields are those of the message around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar, dataclass_transform

from millstream.protocols.kafka.codec.primitives import WireType
from millstream.protocols.kafka.codec.source_builder import SourceBuilder

NEVER = 0x7FFF
"""First flexible version of a message that has none."""

M = TypeVar("M")

_versions: dict[type, Versions] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """Supported versions of a message, and the first flexible one."""

    first: int
    last: int
    flexible: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclasses.dataclass(frozen=True, slots=True)
class FieldDeclaration:
    """Wire type and versions of a field."""

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

    The default is the field's value in versions that lack it. A tagged field is sent only if its
    value is not the default. `nullable_since` is for types that have no null of their own in
    earlier versions, and for structs.
    """
    is_everywhere = since == 0 and until == NEVER and tag is None
    if default is dataclasses.MISSING and not is_everywhere:
        raise TypeError("a field that some version may lack needs a default")
    declared = FieldDeclaration(kind, since, until, nullable_since, tag)
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
    """Make a class a part of messages: a frozen dataclass.

    There are hundreds of them, and a node uses few. So the methods that a dataclass would generate
    for each class are shared here, and `__init__` is generated at the first call.
    """
    made = dataclasses.dataclass(kw_only=True, slots=True, init=False, repr=False, eq=False)(cls)
    for name, function in (("__init__", _init_later(made)), *_SHARED.items()):
        setattr(made, name, function)
    return made


@cache
def mutable_twin(kind: Any) -> type:
    """Return a class with the memory layout of `kind`, but whose instances can be changed.

    Filling an instance of the twin, then changing its class to the frozen one, takes a third of the
    time of setting each field of a frozen instance.
    """
    return type(kind.__name__, (), {"__slots__": _names_of(kind)})


@cache
def _names_of(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]


def _init_later(kind: Any) -> Callable[..., None]:
    """Return an `__init__` that replaces itself with a generated one at the first call."""

    def __init__(self: Any, **values: Any) -> None:  # noqa: N807 - it stands for the real one.
        kind.__init__ = _quick_init(kind)
        kind.__init__(self, **values)

    return __init__


def _quick_init(kind: Any) -> Callable[..., None]:
    """Generate and compile the `__init__` that a dataclass would have, using the twin."""
    source = SourceBuilder()
    twin, made = source.constant("Twin", mutable_twin(kind)), source.constant("Kind", kind)
    parameters = ["self", "*"]
    for field in dataclasses.fields(kind):
        has_default = field.default is not dataclasses.MISSING
        default = f"={source.constant('default', field.default)}" if has_default else ""
        parameters.append(f"{field.name}{default}")
    with source.block(f"def __init__({', '.join(parameters)}):"):
        source.add(f"set_attribute(self, '__class__', {twin})")
        source.add(*(f"self.{name} = {name}" for name in _names_of(kind)))
        source.add(f"self.__class__ = {made}")
    names = {"set_attribute": object.__setattr__}
    return source.compile("__init__", f"{kind.__name__}-init", names)


def _refuse_change(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")


def _values_of(value: Any) -> tuple[Any, ...]:
    kind: Any = type(value)
    return tuple(getattr(value, name) for name in _names_of(kind))


def _is_equal(self: Any, other: object) -> bool:
    return type(other) is type(self) and _values_of(self) == _values_of(other)


def _hash(self: Any) -> int:
    return hash(_values_of(self))


def _repr(self: Any) -> str:
    kind: Any = type(self)
    pairs = zip(_names_of(kind), _values_of(self), strict=True)
    return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return _rebuild, (type(self), _values_of(self))


def _rebuild(kind: Any, values: tuple[Any, ...]) -> Any:
    """Build a value again when it is unpickled."""
    return kind(**dict(zip(_names_of(kind), values, strict=True)))


_SHARED = {
    "__setattr__": _refuse_change,
    "__delattr__": _refuse_change,
    "__eq__": _is_equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__reduce__": _reduce,
}


def versions_of(kind: type) -> Versions:
    try:
        return _versions[kind]
    except KeyError:
        raise TypeError(f"{kind.__name__} is not a message") from None
