"""Names of tables: a path of files, or a name in Spark's catalog; and their formats."""

from __future__ import annotations

import os
import re

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.setting import SettingKind

_SUFFIXES = {
    ".parquet": "parquet",
    ".orc": "orc",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
}
"""Formats that Spark has built in. Others (delta, iceberg, avro) are set with `format`."""

FILE_FORMATS = frozenset(_SUFFIXES.values())

_NAME = re.compile(r"\w+(\.\w+){0,2}")


def is_path(table: str) -> bool:
    """Whether a table is named by a path, which has a slash."""
    return "/" in table


def is_url(path: str) -> bool:
    """Whether a path names its file system."""
    return "://" in path


TABLE = SettingKind(
    'a path with a slash ("./archive"), or the name of a table in Spark\'s catalog ("db.archive")',
    lambda value: (
        isinstance(value, str)
        and (is_path(value) or bool(_NAME.fullmatch(value)))
        and os.path.splitext(value)[1] not in (() if is_path(value) else _SUFFIXES)
    ),
)


def check_table(table: str, format_: str | None, section: str) -> None:
    """Refuse a format for a table of the catalog, which has the format."""
    if format_ and not is_path(table):
        raise InvalidPipeline(
            f"{section}.format is for tables that are named by a path, got {format_!r} for"
            f" {table!r}, whose format is in Spark's catalog"
        )


def table_format(table: str, format_: str | None) -> str:
    """Return the format of the files at a path: as given, else by suffix, else Parquet."""
    return format_ or _SUFFIXES.get(os.path.splitext(table)[1], "parquet")


def resolved(path: str, home: str) -> str:
    """Return the absolute path of one that is relative to `home`."""
    return path if is_url(path) else os.path.abspath(os.path.join(home, os.path.expanduser(path)))
