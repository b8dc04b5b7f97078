"""What a pipeline reads: topics, and tables."""

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
    """How late rows may come: those more than `delay` behind the latest `column` are left out."""

    column: str = setting(TEXT)
    delay: str = setting(INTERVAL)

    def __post_init__(self) -> None:
        check_settings(self, "watermark")


@settings
class TopicSource:
    """A topic as a stream of rows, or without `stream` as a table that each batch reads anew.

    With a schema, given here or declared by the topic, its columns are those of the schema, and of
    the record's own those in `record_columns`. Without one they are the record's own.
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
        place = f"sources.{self.name}"
        check_settings(self, place)
        if self.schema and self.format == "raw":
            raise InvalidPipeline(f"{place} has a schema and format 'raw', which has none")
        if self.dead_letter and self.bad_records != "fail":
            raise InvalidPipeline(
                f"{place} has dead_letter and bad_records {self.bad_records!r}: needed is one"
            )
        if self.dead_letter == self.topic:
            raise InvalidPipeline(
                f"{place}.dead_letter is {self.topic!r}, the topic that it reads: it would read"
                " its own dead letters for ever"
            )
        if not self.stream:
            self._check_whole(place)

    def _check_whole(self, place: str) -> None:
        """Refuse what has no meaning where the whole topic is read each time."""
        for name in ("watermark", "batch_records_max", "batch_bytes_max", "dead_letter"):
            if getattr(self, name) is not None:
                raise InvalidPipeline(f"{place} has {name} and stream = false: it is for streams")
        if self.start != "earliest":
            raise InvalidPipeline(
                f"{place}.start is {self.start!r} and stream = false: all of it is read"
            )

    @property
    def is_stream(self) -> bool:
        """Whether rows are added while the pipeline runs."""
        return self.stream


@settings
class TableSource:
    """A table: rows that are there when the pipeline starts, or with `stream` a stream of files."""

    name: str = setting(VIEW_NAME, key=NAME)
    table: str = setting(TABLE)
    format: str | None = setting(TEXT, default=None)
    schema: str | None = setting(TEXT, default=None)
    stream: bool = setting(FLAG, default=False)
    watermark: Watermark | None = setting(value_of(Watermark), default=None)
    options: Mapping[str, str] = setting(OPTIONS, default_factory=dict)

    def __post_init__(self) -> None:
        place = f"sources.{self.name}"
        check_settings(self, place)
        check_table(self.table, self.format, place)
        if self.schema and not is_path(self.table):
            raise InvalidPipeline(
                f"{place} has a schema, and Spark's catalog has one for its table"
            )
        if self.watermark and not self.stream:
            raise InvalidPipeline(
                f"{place} has a watermark, and no stream: nothing comes late there"
            )

    @property
    def is_stream(self) -> bool:
        """Whether rows are added while the pipeline runs."""
        return self.stream


Source: TypeAlias = TopicSource | TableSource
