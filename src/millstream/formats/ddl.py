"""Spark's DDL for schemas, without Spark: `id BIGINT NOT NULL, tags ARRAY<STRING>`.

Spark parses such a string in its JVM, which the Python process of a data source cannot ask.

    schema  := column ("," column)*
    column  := name [":"] type ["NOT" "NULL"] ["COMMENT" string]
    type    := word ["(" number ("," number)* ")"]
             | "ARRAY" "<" type ">" | "MAP" "<" type "," type ">" | "STRUCT" "<" schema ">"
    name    := word | "`" any "`"
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.errors import InvalidConfig

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<sign>[<>(),:])"""
    r"""|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))"""
)

_TYPES: Mapping[str, type[DataType]] = {
    "BOOLEAN": BooleanType,
    "BYTE": ByteType,
    "TINYINT": ByteType,
    "SHORT": ShortType,
    "SMALLINT": ShortType,
    "INT": IntegerType,
    "INTEGER": IntegerType,
    "LONG": LongType,
    "BIGINT": LongType,
    "FLOAT": FloatType,
    "REAL": FloatType,
    "DOUBLE": DoubleType,
    "STRING": StringType,
    "BINARY": BinaryType,
    "DATE": DateType,
    "TIMESTAMP": TimestampType,
    "TIMESTAMP_LTZ": TimestampType,
    "TIMESTAMP_NTZ": TimestampNTZType,
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_PRECISION_MAX = 38
_DEPTH_MAX = 64
"""Types inside types; the plan allows fewer."""


def parse_ddl(text: str) -> StructType:
    """Return the schema that `text` says; raises `InvalidConfig` with where it says none."""
    parser = _Parser(text)
    fields = parser.columns(end="", depth=0)
    return StructType(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._kind, self._token = "", ""
        self._advance()

    def _advance(self) -> None:
        rest = self._text[self._position :]
        if not rest.strip():
            self._kind, self._token = "end", ""
            return
        found = _TOKEN.match(rest)
        if found is None:
            raise self._refused("a name, a type or a sign", rest.strip()[:20])
        self._kind, self._token = str(found.lastgroup), found[0].strip()
        self._position += found.end()

    def _refused(self, allowed: str, found: str | None = None) -> InvalidConfig:
        shown = (self._token if found is None else found) or "the end"
        return InvalidConfig(
            f"schema, before character {self._position}: found {shown!r}, expected {allowed}"
        )

    def _is(self, word: str) -> bool:
        return self._kind in ("word", "sign") and self._token.upper() == word

    def _took(self, word: str) -> bool:
        is_there = self._is(word)
        if is_there:
            self._advance()
        return is_there

    def _take(self, word: str) -> None:
        if not self._took(word):
            raise self._refused(repr(word))

    def columns(self, *, end: str, depth: int) -> list[StructField]:
        """Read columns up to the sign that ends them, or to the end of the text."""
        fields = []
        while True:
            fields.append(self._column(depth))
            if self._took(","):
                continue
            if end:
                self._take(end)
            elif self._kind != "end":
                raise self._refused("',' or the end")
            return fields

    def _column(self, depth: int) -> StructField:
        if self._kind == "name":
            name = self._token[1:-1].replace("``", "`")
        elif self._kind == "word":
            name = self._token
        else:
            raise self._refused("the name of a column")
        self._advance()
        self._took(":")
        kind = self._type(depth)
        is_required = self._took("NOT")
        if is_required:
            self._take("NULL")
        if self._took("COMMENT"):
            if self._kind != "text":
                raise self._refused("a comment in quotes")
            self._advance()
        return StructField(name, kind, nullable=not is_required)

    def _type(self, depth: int) -> DataType:
        if depth > _DEPTH_MAX:
            raise InvalidConfig(f"schema is more than {_DEPTH_MAX} levels deep, which is the limit")
        word = self._token.upper() if self._kind == "word" else ""
        if word == "ARRAY":
            return ArrayType(self._inside(depth, 1)[0])
        if word == "MAP":
            key, value = self._inside(depth, 2)
            return MapType(key, value)
        if word == "STRUCT":
            self._advance()
            self._take("<")
            return StructType(self.columns(end=">", depth=depth + 1))
        if word in _DECIMALS:
            self._advance()
            return self._decimal()
        if word not in _TYPES:
            allowed = ", ".join([*_TYPES, *_DECIMALS, "ARRAY", "MAP", "STRUCT"])
            raise self._refused(f"a type: {allowed}")
        self._advance()
        return _TYPES[word]()

    def _inside(self, depth: int, count: int) -> list[DataType]:
        """Read `<type>` or `<type, type>`."""
        self._advance()
        self._take("<")
        found = [self._type(depth + 1)]
        for _ in range(count - 1):
            self._take(",")
            found.append(self._type(depth + 1))
        self._take(">")
        return found

    def _decimal(self) -> DecimalType:
        precision, scale = 10, 0
        if self._took("("):
            precision = self._number()
            scale = self._number() if self._took(",") else 0
            self._take(")")
        if not (1 <= precision <= _PRECISION_MAX and 0 <= scale <= precision):
            raise InvalidConfig(
                f"schema has DECIMAL({precision},{scale}), allowed is a precision of 1 to"
                f" {_PRECISION_MAX} and a scale of 0 up to it"
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        if not re.fullmatch(r"[0-9]{1,3}", self._token):
            raise self._refused("a number")
        number = int(self._token)
        self._advance()
        return number
