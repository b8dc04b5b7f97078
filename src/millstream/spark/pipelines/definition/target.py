"""Targets of a pipeline: topics, tables and Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.setting import (
    FILE_NAME,
    FUNCTION,
    NAME,
    OPTIONS,
    TEXT,
    TEXTS,
    VIEW_NAME,
    check_settings,
    choice,
    setting,
    settings,
)
from millstream.spark.pipelines.definition.table import TABLE, check_table


@settings
class TopicTarget:
    """A topic: rows become records, each batch exactly once.

    With format `json` the value is the row as JSON, and the key is the text of the column `key`.
    With `raw` the rows have a column `value` and may have `key`, `topic`, `partition`, `timestamp`
    and `headers`. With `declared` the topic's declaration determines how columns become values. The
    default is `raw` if the rows have those columns, else `json`.
    """

    name: str = setting(FILE_NAME, key=NAME)
    reads: str | None = setting(VIEW_NAME, key="from", default=None)
    topic: str = setting(TEXT)
    key: str | None = setting(TEXT, default=None)
    format: str | None = setting(choice("json", "raw", "declared"), default=None)
    mode: str = setting(choice("append", "update"), default="append")
    options: Mapping[str, str] = setting(OPTIONS, default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self, f"targets.{self.name}")
        if self.key and self.format == "raw":
            raise InvalidPipeline(
                f"targets.{self.name}.key must not be set with format 'raw', which takes the column"
                f" key; got {self.key!r}"
            )


@settings
class TableTarget:
    """A table: rows are appended, or with mode `complete` replace all rows."""

    name: str = setting(FILE_NAME, key=NAME)
    reads: str | None = setting(VIEW_NAME, key="from", default=None)
    table: str = setting(TABLE)
    format: str | None = setting(TEXT, default=None)
    partition_by: tuple[str, ...] = setting(TEXTS, default=())
    mode: str = setting(choice("append", "complete"), default="append")
    options: Mapping[str, str] = setting(OPTIONS, default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self, f"targets.{self.name}")
        check_table(self.table, self.format, f"targets.{self.name}")


@settings
class FunctionTarget:
    """A function that is called with each batch and its number.

    A batch whose completion was not recorded is passed again, with the same rows and the same
    number: the function must be idempotent.
    """

    name: str = setting(FILE_NAME, key=NAME)
    reads: str | None = setting(VIEW_NAME, key="from", default=None)
    function: Callable[[Any, int], None] = setting(FUNCTION)
    mode: str = setting(choice("append", "update", "complete"), default="append")

    def __post_init__(self) -> None:
        check_settings(self, f"targets.{self.name}")
        try:
            inspect.signature(self.function).bind(None, 0)
        except TypeError:
            raise InvalidPipeline(
                f"targets.{self.name} must be a function of (batch, batch_id), got"
                f" {inspect.signature(self.function)}"
            ) from None


Target: TypeAlias = TopicTarget | TableTarget | FunctionTarget


def place_of(target: Target) -> str:
    """Return a description of a target's location."""
    if isinstance(target, TopicTarget):
        return f"topic {target.topic}"
    if isinstance(target, TableTarget):
        return f"table {target.table}"
    return f"function {target.function.__name__}"


def target(
    function: Callable[[Any, int], None] | None = None,
    *,
    name: str | None = None,
    reads: str | None = None,
    mode: str = "append",
) -> Any:
    """Make a function of (batch, batch_id) a target, under its own name unless another is given.

    @target(reads="changes", mode="update")
    def merge(batch, batch_id):
        ...
    """
    if function is None:
        return lambda decorated: target(decorated, name=name, reads=reads, mode=mode)
    return FunctionTarget(name=name or function.__name__, function=function, reads=reads, mode=mode)
