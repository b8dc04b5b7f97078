"""Where tables are: files at a path, or a name in Spark's catalog; and in what format."""

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
"""What Spark reads and writes by itself. Others (delta, iceberg, avro) are named by `format`."""

FILE_FORMATS = frozenset(_SUFFIXES.values())

_NAME = re.compile(r"\w+(\.\w+){0,2}")


def is_path(table: str) -> bool:
    """Whether a table is named by where its files are: such a name has a slash in it."""
    return "/" in table


def is_url(path: str) -> bool:
    """Whether a path is in a file system that it names itself."""
    return "://" in path


TABLE = SettingKind(
    'a path with a slash ("./archive"), or the name of a table in Spark\'s catalog ("db.archive")',
    lambda value: (
        isinstance(value, str)
        and (is_path(value) or bool(_NAME.fullmatch(value)))
        and os.path.splitext(value)[1] not in (() if is_path(value) else _SUFFIXES)
    ),
)


def check_table(table: str, format_: str | None, place: str) -> None:
    """Refuse a format for a table whose format the catalog knows."""
    if format_ and not is_path(table):
        raise InvalidPipeline(
            f"{place}.format is {format_!r}, and Spark's catalog has one for {table!r}:"
            " it is for paths"
        )


def table_format(table: str, format_: str | None) -> str:
    """Return the format of the files at a path: the given one, or by its suffix, or Parquet."""
    return format_ or _SUFFIXES.get(os.path.splitext(table)[1], "parquet")


def resolved(path: str, home: str) -> str:
    """Return a path that is relative to `home` as an absolute one."""
    return path if is_url(path) else os.path.abspath(os.path.join(home, os.path.expanduser(path)))
