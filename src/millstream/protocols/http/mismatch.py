"""Explains why JSON is not the expected message: where it differs, what is allowed, what was found.

    records[2].partition must be an integer of at least 0, got -1

The words of the JSON library never reach a client: they name types of Python. Used only for errors,
so it may be slow; its output is for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

NAMES_SHOWN_MAX = 10
"""Unknown names that an error repeats."""
NAME_LENGTH_MAX = 100

_POSITION = re.compile(r"\((?:byte|char) ([0-9]+)\)")


def describe_mismatch(decoded: Any, kind: type) -> str:
    """Return what is wrong with a decoded body, as words that follow "body"."""
    for words in _differences(decoded, inspect.type_info(kind), ""):
        return words
    return "is not the expected message"


def describe_syntax(error: Exception) -> str:
    """Return why data is not JSON, without the words of the library that refused it."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    words = str(error)
    position = _POSITION.search(words)
    if "truncated" in words:
        return "it ends too early"
    if "utf-8" in words.lower():
        return "it has bytes that are not UTF-8"
    if "out of range" in words:
        return "it has a number that is out of range"
    if position is None:
        return "it is malformed"
    return f"it is malformed at byte {position[1]}"


def _differences(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    """Yield what is wrong with `value`, if it should be a `kind`."""
    match kind:
        case inspect.Metadata():
            yield from _differences(value, kind.type, path)
        case inspect.UnionType():
            yield from _in_union(value, kind, path)
        case inspect.StructType() if isinstance(value, dict):
            yield from _in_struct(value, kind, path)
        case inspect.ListType() if isinstance(value, list) and _has_length(value, kind):
            for row, item in enumerate(value):
                yield from _differences(item, kind.item_type, f"{path}[{row}]")
        case inspect.DictType() if isinstance(value, dict):
            for name, item in value.items():
                yield from _differences(item, kind.value_type, f"{path}.{_shown_name(name)}")
        case _ if not _is_allowed(value, kind):
            yield _wrong(path, _allowed(kind), value)


def _wrong(path: str, allowed: str, value: Any) -> str:
    where = f"is invalid: {path} " if path else ""
    return f"{where}must be {allowed}, got {_shown(value)}"


def _in_union(value: Any, kind: inspect.UnionType, path: str) -> Iterator[str]:
    """Check against the one type of a union that can be meant; if several can, against all."""
    if value is None and kind.includes_none:
        return
    others = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    meant = [option for option in others if _is_shape(value, option)] or others
    found = [list(_differences(value, option, path)) for option in meant]
    if all(found):
        if len(meant) == 1:
            yield from found[0]
        else:
            allowed = " or ".join(_allowed(option) for option in meant)
            yield _wrong(path, allowed, value)


def _in_struct(decoded: dict[str, Any], kind: inspect.StructType, path: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in kind.fields}
    where = f" in {path}" if path else ""
    unknown = [name for name in decoded if name not in fields]
    if unknown and kind.forbid_unknown_fields:
        names = ", ".join(repr(name[:NAME_LENGTH_MAX]) for name in unknown[:NAMES_SHOWN_MAX])
        allowed = ", ".join(map(repr, fields))
        noun = "field" if len(unknown) == 1 else "fields"
        yield f"has the unknown {noun} {names}{where}, allowed: {allowed}"
    for name, field in fields.items():
        if name in decoded:
            yield from _differences(decoded[name], field.type, f"{path}.{name}".lstrip("."))
        elif field.required:
            yield f"must have the field {name!r}{where}"


def _is_shape(value: Any, kind: inspect.Type) -> bool:  # noqa: PLR0911 - one per type.
    """Return whether a value has the JSON type of `kind`, whatever is in it."""
    match kind:
        case inspect.Metadata():
            return _is_shape(value, kind.type)
        case inspect.StructType() | inspect.DictType():
            return isinstance(value, dict)
        case inspect.ListType():
            return isinstance(value, list)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType() | inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def _is_allowed(value: Any, kind: inspect.Type) -> bool:  # noqa: PLR0911 - one per type.
    match kind:
        case inspect.LiteralType():
            return any(value == known and type(value) is type(known) for known in kind.values)
        case inspect.EnumType():
            return value in [member.value for member in kind.cls]
        case inspect.IntType():
            return _is_integer(value) and _is_in_range(value, kind)
        case inspect.FloatType():
            return _is_shape(value, kind) and _is_in_range(value, kind)
        case inspect.StrType():
            return (
                isinstance(value, str)
                and _has_length(value, kind)
                and (kind.pattern is None or re.search(kind.pattern, value) is not None)
            )
        case inspect.NoneType():
            return value is None
        case inspect.StructType() | inspect.DictType() | inspect.ListType() | inspect.BoolType():
            return _is_shape(value, kind) and _has_length(value, kind)
    return True


def _is_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and value.is_integer()
    )


def _is_in_range(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return not (
        (kind.ge is not None and value < kind.ge)
        or (kind.gt is not None and value <= kind.gt)
        or (kind.le is not None and value > kind.le)
        or (kind.lt is not None and value >= kind.lt)
    )


def _has_length(value: Any, kind: Any) -> bool:
    least, most = getattr(kind, "min_length", None), getattr(kind, "max_length", None)
    return (least is None or len(value) >= least) and (most is None or len(value) <= most)


def _allowed(kind: inspect.Type) -> str:  # noqa: PLR0911 - one per type.
    """Return what a `kind` may be, as words that follow "must be"."""
    match kind:
        case inspect.Metadata():
            return _allowed(kind.type)
        case inspect.LiteralType():
            return "one of " + ", ".join(json.dumps(value) for value in kind.values)
        case inspect.EnumType():
            return "one of " + ", ".join(json.dumps(member.value) for member in kind.cls)
        case inspect.IntType():
            return "an integer" + _range(kind.ge, kind.le)
        case inspect.FloatType():
            return "a number" + _range(kind.ge, kind.le)
        case inspect.StrType():
            form = "" if kind.pattern is None else f" that matches {kind.pattern}"
            return "text" + _lengths(kind, "characters") + form
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case inspect.ListType():
            return "a list" + _lengths(kind, "items")
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case inspect.UnionType():
            return " or ".join(map(_allowed, kind.types))
    return "another value"


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" between {least} and {most}"
    if least is not None:
        return f" of at least {least}"
    return "" if most is None else f" of at most {most}"


def _lengths(kind: Any, unit: str) -> str:
    least, most = kind.min_length, kind.max_length
    if least and most is not None:
        return f" of {least} to {most} {unit}"
    if least:
        return f" of at least {least} {unit}"
    return "" if most is None else f" of at most {most} {unit}"


def _shown(value: Any) -> str:
    """Return a value as a message repeats it: short ones as JSON, long ones by their kind."""
    match value:
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case str() if len(value) > NAME_LENGTH_MAX:
            return f"text of {len(value)} characters"
    text = json.dumps(value)
    return text if len(text) <= NAME_LENGTH_MAX else f"{text[:NAME_LENGTH_MAX]}..."


def _shown_name(name: str) -> str:
    return json.dumps(name[:NAME_LENGTH_MAX]).strip('"')
