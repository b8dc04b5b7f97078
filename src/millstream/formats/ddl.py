"""Parser of Spark's DDL for schemas: `id BIGINT NOT NULL, tags ARRAY<STRING>`.

Spark parses DDL in its JVM, which the Python process of a data source cannot call.

    schema  := column ("," column)*
    column  := name [":"] type ["NOT" "NULL"] ["COMMENT" string]
    type    := word ["(" number ("," number)* ")"]
             | "ARRAY" "<" type ">" | "MAP" "<" type "," type ">" | "STRUCT" "<" schema ">"
    name    := word | "`" any "`"
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.column_types import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    decimal_type,
    list_type,
    map_type,
)

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<symbol>[<>(),:])"""
    r"""|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))"""
)

_TYPES: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "TINYINT": pa.int8(),
    "SHORT": pa.int16(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_DEPTH_MAX = 64
"""Nesting of types at which the parser gives up, so that it cannot overflow the stack. A format
allows less: see `schema_plan.DEPTH_MAX`."""


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema in `text`; raises `InvalidConfig` with the position of an error."""
    return pa.schema(_Parser(text).columns(end="", depth=0))


class _Parser:
    """Recursive descent with one token of lookahead: `_kind` and `_token`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._kind, self._token = "", ""
        self._advance()

    def _advance(self) -> None:
        remaining = self._text[self._position :]
        if not remaining.strip():
            self._kind, self._token = "end", ""
            return
        match = _TOKEN.match(remaining)
        if match is None:
            raise self._error("a name, a type or a symbol", remaining.strip()[:20])
        self._kind, self._token = str(match.lastgroup), match[0].strip()
        self._position += match.end()

    def _error(self, expected: str, text: str | None = None) -> InvalidConfig:
        shown = (self._token if text is None else text) or "the end"
        return InvalidConfig(
            f"schema, before character {self._position}: expected {expected}, got {shown!r}"
        )

    def _accept(self, word: str) -> bool:
        """Advance past the token if it is `word`, and return whether it was."""
        is_word = self._kind in ("word", "symbol") and self._token.upper() == word
        if is_word:
            self._advance()
        return is_word

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(repr(word))

    def columns(self, *, end: str, depth: int) -> list[pa.Field]:
        """Parse columns up to the symbol `end`, or to the end of the text if it is empty."""
        fields = []
        while True:
            fields.append(self._column(depth))
            if self._accept(","):
                continue
            if end:
                self._expect(end)
            elif self._kind != "end":
                raise self._error("',' or the end")
            return fields

    def _column(self, depth: int) -> pa.Field:
        if self._kind == "name":
            name = self._token[1:-1].replace("``", "`")
        elif self._kind == "word":
            name = self._token
        else:
            raise self._error("the name of a column")
        self._advance()
        self._accept(":")
        kind = self._type(depth)
        is_required = self._accept("NOT")
        if is_required:
            self._expect("NULL")
        if self._accept("COMMENT"):
            if self._kind != "text":
                raise self._error("a comment in quotes")
            self._advance()
        return pa.field(name, kind, nullable=not is_required)

    def _type(self, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise InvalidConfig(f"schema is nested too deeply: more than {_DEPTH_MAX} levels")
        word = self._token.upper() if self._kind == "word" else ""
        if word == "ARRAY":
            return list_type(*self._type_arguments(depth, count=1))
        if word == "MAP":
            return map_type(*self._type_arguments(depth, count=2))
        if word == "STRUCT":
            self._advance()
            self._expect("<")
            return pa.struct(self.columns(end=">", depth=depth + 1))
        if word in _DECIMALS:
            self._advance()
            return self._decimal()
        if word not in _TYPES:
            names = ", ".join([*_TYPES, *_DECIMALS, "ARRAY", "MAP", "STRUCT"])
            raise self._error(f"a type ({names})")
        self._advance()
        return _TYPES[word]

    def _type_arguments(self, depth: int, *, count: int) -> list[pa.DataType]:
        """Parse `<type>` or `<type, type>`."""
        self._advance()
        self._expect("<")
        types = [self._type(depth + 1)]
        for _ in range(count - 1):
            self._expect(",")
            types.append(self._type(depth + 1))
        self._expect(">")
        return types

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            scale = self._number() if self._accept(",") else 0
            self._expect(")")
        return decimal_type(precision, scale)

    def _number(self) -> int:
        if not re.fullmatch(r"[0-9]{1,3}", self._token):
            raise self._error("a number")
        number = int(self._token)
        self._advance()
        return number
