"""Sources of a pipeline: topics and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from millstream.errors import InvalidPipeline
from millstream.formats.names import COLUMN_NAMES
from millstream.spark.pipelines.definition.setting import (
    COUNT,
    FLAG,
    INTERVAL,
    NAME,
    OPTIONS,
    TEXT,
    VIEW_NAME,
    check_settings,
    choice,
    choices,
    setting,
    settings,
    value_of,
)
from millstream.spark.pipelines.definition.table import TABLE, check_table, is_path


@settings
class Watermark:
    """Limit for late rows: those more than `delay` behind the latest `column` are dropped."""

    column: str = setting(TEXT)
    delay: str = setting(INTERVAL)

    def __post_init__(self) -> None:
        check_settings(self, "watermark")


@settings
class TopicSource:
    """A topic as a stream of rows, or with `stream=False` as a table that each batch reads again.

    With a schema, given here or declared by the topic, its columns are those of the schema and the
    columns of the record that `record_columns` names. Without a schema they are those of the
    record.
    """

    name: str = setting(VIEW_NAME, key=NAME)
    topic: str = setting(TEXT)
    format: str | None = setting(choice("raw", "json", "avro"), default=None)
    schema: str | None = setting(TEXT, default=None)
    record_columns: tuple[str, ...] = setting(choices(*COLUMN_NAMES), default=())
    watermark: Watermark | None = setting(value_of(Watermark), default=None)
    start: str = setting(choice("earliest", "latest"), default="earliest")
    bad_records: str = setting(choice("fail", "null"), default="fail")
    dead_letter: str | None = setting(TEXT, default=None)
    batch_records_max: int | None = setting(COUNT, default=None)
    batch_bytes_max: int | None = setting(COUNT, default=None)
    fail_on_data_loss: bool = setting(FLAG, default=True)
    stream: bool = setting(FLAG, default=True)
    options: Mapping[str, str] = setting(OPTIONS, default_factory=dict)

    def __post_init__(self) -> None:
        section = f"sources.{self.name}"
        check_settings(self, section)
        if self.schema and self.format == "raw":
            raise InvalidPipeline(f"{section} must not have a schema with format 'raw'")
        if self.dead_letter and self.bad_records != "fail":
            raise InvalidPipeline(
                f"{section} must have either dead_letter or bad_records, got both (bad_records"
                f" {self.bad_records!r})"
            )
        if self.dead_letter == self.topic:
            raise InvalidPipeline(
                f"{section}.dead_letter must not be the topic that the source reads, got"
                f" {self.topic!r}: it would read its own dead letters"
            )
        if not self.stream:
            self._check_table_mode(section)

    def _check_table_mode(self, section: str) -> None:
        """Refuse settings that have no meaning if the whole topic is read each time."""
        for name in ("watermark", "batch_records_max", "batch_bytes_max", "dead_letter"):
            if getattr(self, name) is not None:
                raise InvalidPipeline(f"{section}.{name} requires stream = true")
        if self.start != "earliest":
            raise InvalidPipeline(
                f"{section}.start must be 'earliest' with stream = false, got {self.start!r}"
            )

    @property
    def is_stream(self) -> bool:
        """Whether rows are added while the pipeline runs."""
        return self.stream


@settings
class TableSource:
    """A table: its rows when the pipeline starts, or with `stream` a stream of its files."""

    name: str = setting(VIEW_NAME, key=NAME)
    table: str = setting(TABLE)
    format: str | None = setting(TEXT, default=None)
    schema: str | None = setting(TEXT, default=None)
    stream: bool = setting(FLAG, default=False)
    watermark: Watermark | None = setting(value_of(Watermark), default=None)
    options: Mapping[str, str] = setting(OPTIONS, default_factory=dict)

    def __post_init__(self) -> None:
        section = f"sources.{self.name}"
        check_settings(self, section)
        check_table(self.table, self.format, section)
        if self.schema and not is_path(self.table):
            raise InvalidPipeline(
                f"{section} must not have a schema: Spark's catalog has the schema of its table"
            )
        if self.watermark and not self.stream:
            raise InvalidPipeline(f"{section}.watermark requires stream = true")

    @property
    def is_stream(self) -> bool:
        """Whether rows are added while the pipeline runs."""
        return self.stream


Source: TypeAlias = TopicSource | TableSource
