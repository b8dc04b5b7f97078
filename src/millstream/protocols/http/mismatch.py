"""Explains why a JSON body is not the expected message: where it differs, and what is allowed.

Used only for errors, so it may be slow; its output is for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

NAMES_SHOWN_MAX = 10
"""Unknown names that an error repeats."""
NAME_LENGTH_MAX = 100

_WORDS_LENGTH_MAX = 300

_LIST_FIELD = re.compile(r"`\$\.(\w+)\[\.\.\.\]")
"""How msgspec names an item of a list that is a field of the body."""


def describe_mismatch(data: bytes, decoded: Any, kind: type, error: Exception) -> str:
    """Return what is wrong with a body, as words that follow "body"."""
    for words in _differences(decoded, inspect.type_info(kind), ""):
        return words
    return f"is invalid: {_with_index(data, kind, str(error))[:_WORDS_LENGTH_MAX]}"


def _differences(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    """Yield unknown names and values that are not allowed, if `value` should be a `kind`."""
    match kind:
        case inspect.Metadata():
            yield from _differences(value, kind.type, path)
        case inspect.UnionType():
            yield from _in_union(value, kind, path)
        case inspect.StructType() if isinstance(value, dict):
            yield from _in_struct(value, kind, path)
        case inspect.ListType() if isinstance(value, list):
            for row, item in enumerate(value):
                yield from _differences(item, kind.item_type, f"{path}[{row}]")
        case inspect.LiteralType() if value not in kind.values:
            allowed = ", ".join(map(repr, kind.values))
            shown = str(value)[:NAME_LENGTH_MAX]
            yield f"is invalid: {path} must be one of {allowed}, got {shown!r}"


def _in_union(value: Any, kind: inspect.UnionType, path: str) -> Iterator[str]:
    """Check against the one type of a union that can be meant, if there is only one."""
    if value is None and kind.includes_none:
        return
    others = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    if isinstance(value, dict):
        others = [option for option in others if isinstance(option, inspect.StructType)]
    if len(others) == 1:
        yield from _differences(value, others[0], path)


def _in_struct(decoded: dict[str, Any], kind: inspect.StructType, path: str) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in kind.fields}
    unknown = [name for name in decoded if name not in fields]
    if unknown and kind.forbid_unknown_fields:
        names = ", ".join(repr(name[:NAME_LENGTH_MAX]) for name in unknown[:NAMES_SHOWN_MAX])
        allowed = ", ".join(map(repr, fields))
        where = f" in {path}" if path else ""
        noun = "field" if len(unknown) == 1 else "fields"
        yield f"has the unknown {noun} {names}{where}, allowed: {allowed}"
    for name, value in decoded.items():
        if name in fields:
            yield from _differences(value, fields[name], f"{path}.{name}".lstrip("."))


def _with_index(data: bytes, kind: type, words: str) -> str:
    """Return the words of an error with the index of the list item that it is about."""
    match = _LIST_FIELD.search(words)
    raws = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    if match is None or not bytes(raws[match[1]]).startswith(b"["):
        return words
    name = match[1]
    hints = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    items = msgspec.json.decode(raws[name], type=list[msgspec.Raw])
    for row, item in enumerate(items):
        try:
            msgspec.json.decode(b"[" + item + b"]", type=hints[name])
        except msgspec.ValidationError:
            return words.replace(f"$.{name}[...]", f"$.{name}[{row}]")
    return words
