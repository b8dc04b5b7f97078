"""Tables in Spark's catalog: `CREATE TABLE orders USING millstream OPTIONS (...)`.

Spark keeps the options of such a table, but passes them on only when it is created, and asks then
for its columns. What it does pass on with every query and INSERT are these columns, so the options
travel in the metadata of the first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from millstream.errors import InvalidConfig
from millstream.formats.names import COLUMN_NAMES
from millstream.spark.options import (
    CATALOG_OPTIONS,
    CATALOG_PREFIX,
    READ_OPTIONS,
    WRITE_OPTIONS,
    OptionHelp,
    named,
    parse_read_options,
    parse_write_options,
)

OPTIONS_KEY = "millstream.options"
"""Key in the metadata of the first column of a table."""

_SOURCES = ("bootstrap.servers", "path")

_ONE_WRITE = ("jobId", "jobSequence")

_READ_ONLY = ("offset", "timestampType", "_error")
"""Columns of a table that the node assigns, or that only exist while it is read."""


def is_being_created(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is put into the catalog."""
    return any(name.lower() == "provider" for name in options)


def check_table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a new table that its queries use.

    Raises `InvalidConfig` if one is wrong, also of those that its INSERTs use.
    """
    given = _without_catalog(options)
    for name in _ONE_WRITE:
        if named(given, WRITE_OPTIONS).get(name) is not None:
            raise InvalidConfig(
                f"option {name} is for one write, not for all writes of a table: give it with"
                f" INSERT INTO ... WITH (`{name}` '...')"
            )
    if "path" not in named(given, READ_OPTIONS):
        parse_write_options(_for_use(given, WRITE_OPTIONS, READ_OPTIONS))
    reading = _for_use(given, READ_OPTIONS, WRITE_OPTIONS)
    parse_read_options(reading, is_stream=False)
    return reading


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a new table, which carry its options."""
    first, *others = schema
    metadata = {**(first.metadata or {}), OPTIONS_KEY: json.dumps(_without_catalog(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_to_read(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a reader: as given, or those of the table that has these columns."""
    table = _table_options(options, schema)
    return options if table is None else _for_use(table, READ_OPTIONS, WRITE_OPTIONS)


def options_to_write(
    options: Mapping[str, str], schema: StructType
) -> tuple[Mapping[str, str], bool]:
    """Return the options of a writer, and whether they are those of a table."""
    table = _table_options(options, schema)
    if table is None:
        return options, False
    return _for_use(table, WRITE_OPTIONS, READ_OPTIONS), True


def read_only_columns(names: list[str]) -> list[str]:
    """Return the columns of a table that a row to be inserted has no value for.

    That is also `value`, if it is encoded from typed columns.
    """
    is_typed = any(name not in COLUMN_NAMES and name not in _READ_ONLY for name in names)
    return [name for name in names if name in _READ_ONLY or (is_typed and name == "value")]


def _table_options(options: Mapping[str, str], schema: StructType) -> dict[str, str] | None:
    """Return the options of the table that has these columns, with those given for one query.

    Returns `None` if a source is given, so it is not a table.
    """
    given = _without_catalog(options)
    if any(name in named(given, READ_OPTIONS) for name in _SOURCES):
        return None
    for field in schema:
        if (stored := (field.metadata or {}).get(OPTIONS_KEY)) is not None:
            table: dict[str, Any] = json.loads(stored)
            replaced = {name.lower() for name in given}
            return {**{n: v for n, v in table.items() if n.lower() not in replaced}, **given}
    if not given:
        raise InvalidConfig(
            "there are no options, such as bootstrap.servers. Spark does not pass on the options of"
            " a table in its catalog that was created with columns, or AS SELECT: create it"
            " without columns, as in CREATE TABLE orders USING millstream OPTIONS"
            " (`bootstrap.servers` 'localhost:9092', topic 'orders', columns 'key,value')"
        )
    return None


def _without_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without the properties that the catalog adds."""
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in CATALOG_OPTIONS and not name.lower().startswith(CATALOG_PREFIX)
    }


def _for_use(
    options: Mapping[str, str],
    used: Mapping[str, OptionHelp],
    others: Mapping[str, OptionHelp],
) -> dict[str, str]:
    """Return the options of a table for one use; the others are for the other use."""
    of_use, of_others = named(options, used), named(options, others)
    left_out = {given for name, given in of_others.items() if name not in of_use}
    return {name: value for name, value in options.items() if name not in left_out}
