"""`format("millstream")`: every topic a Spark table.

    spark.read.format("millstream").option("bootstrap.servers", ...).option("topic", ...).load()

Spark finds it by itself, through the package `pyspark_millstream`. Where Spark runs elsewhere than
the installation, `spark.dataSource.register(MillstreamDataSource)` brings it along.
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millstream.errors import InvalidConfig
from millstream.spark.columns import TABLE, TABLE_NAMES, check_schema, table_schema
from millstream.spark.options import ReadOptions, parse_read_options, parse_write_options
from millstream.spark.topic_values import TopicValues, find_values

# Spark starts a Python process for most steps of a query, and each imports this module: what only
# one of them needs is imported where it is used.

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class MillstreamDataSource(DataSource):
    """Topics of a node, or of a data directory."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "millstream"

    def schema(self) -> StructType:
        """Return the columns of what the options name, with those that its values are typed by."""
        # Whether it is for a stream is not known here, and makes no difference to the columns.
        options = parse_read_options(self.options, is_stream=False)
        return table_schema(
            include_headers=options.include_headers,
            columns=options.columns,
            typed=_typed(_values(options)),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch; `schema` may be a part of the columns, asked for by a user."""
        from millstream.spark.read.batch_reader import BatchReader, PushdownReader  # noqa: PLC0415

        # With its setting for it on, Spark plans in this module, which pushes; with it off, it
        # refuses a reader that could.
        caller = sys._getframe(1).f_globals["__name__"]  # noqa: SLF001
        kind = PushdownReader if caller == _PUSHING_WORKER else BatchReader
        options = parse_read_options(self.options, is_stream=False)
        return kind(options, _checked(options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a stream."""
        from millstream.spark.read.stream_reader import StreamReader  # noqa: PLC0415

        options = parse_read_options(self.options, is_stream=True)
        return StreamReader(options, _checked(options, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return what writes a batch."""
        from millstream.spark.write.writer import BatchWriter  # noqa: PLC0415

        return BatchWriter(parse_write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return what writes a stream."""
        from millstream.spark.write.writer import StreamWriter  # noqa: PLC0415

        return StreamWriter(parse_write_options(self.options), schema, overwrite=overwrite)


def _checked(options: ReadOptions, schema: StructType) -> TopicValues:
    """Return what is known of the values, once the columns that are asked for are ones there are.

    Topics are asked for what they declare only where more is wanted than every topic has.
    """
    if TABLE_NAMES.issuperset(schema.fieldNames()):
        check_schema(schema, TABLE)
        return TopicValues(options.value)
    values = _values(options)
    check_schema(schema, StructType([*TABLE, *_typed(values)]))
    return values


def _values(options: ReadOptions) -> TopicValues:
    from millstream.spark.read.plan import find_partitions  # noqa: PLC0415
    from millstream.spark.source_cache import open_source  # noqa: PLC0415

    place = open_source(options.place)
    topics = {one.topic for one in find_partitions(place, options.selection)}
    values = find_values(place, sorted(topics), options.value)
    if options.value.dead_letter_topic is not None and options.place.path is not None:
        raise InvalidConfig(
            f"path is {options.place.path!r} and onBadRecord is deadLetter: dead letters need a"
            " node to go to, with bootstrap.servers"
        )
    return values


def _typed(values: TopicValues) -> StructType:
    if not values.is_typed:
        return StructType([])
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    return from_arrow_schema(pa.schema(values.fields()))
