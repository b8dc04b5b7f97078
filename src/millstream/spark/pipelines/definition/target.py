"""Where the rows of a pipeline go: topics, tables, and Python functions."""

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
    """Rows become records of a topic, each batch exactly once.

    With format `json` the value is the row as JSON, and the key is the text of the column that
    `key` names; with `raw` the rows have a column `value` and may have `key`, `topic`, `partition`,
    `timestamp` and `headers`; with `declared` the topic itself says how columns become values.
    Without a format it is `raw` where rows are like that, else `json`.
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
                f"targets.{self.name}.key is {self.key!r} with format 'raw', whose key is the"
                " column key"
            )


@settings
class TableTarget:
    """Rows go into a table: added to it, or with mode `complete` in place of all that was there."""

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
    """Each batch goes to a function, with its number.

    A batch whose end was not recorded is handed over again, with the same rows and the same number:
    the function has to see to it that this does no harm.
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
                f"targets.{self.name} is a function of {inspect.signature(self.function)},"
                " needed is one of (batch, batch_id)"
            ) from None


Target: TypeAlias = TopicTarget | TableTarget | FunctionTarget


def place_of(target: Target) -> str:
    """Return where a target is, as people say it."""
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
        return lambda given: target(given, name=name, reads=reads, mode=mode)
    return FunctionTarget(name=name or function.__name__, function=function, reads=reads, mode=mode)
