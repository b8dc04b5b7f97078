"""Data source `format("millstream")`: topics as Spark tables.

    spark.read.format("millstream").option("bootstrap.servers", ...).option("topic", ...).load()

Spark finds it through the package `pyspark_millstream`, which must be installed in the Python of
the driver and of all executors (`PYSPARK_PYTHON`).
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

from millstream.errors import InvalidConfig, MillstreamError
from millstream.spark.catalog import (
    check_table_options,
    is_being_created,
    options_to_read,
    options_to_write,
    with_options,
)
from millstream.spark.columns import TABLE, check_schema, is_table_name, table_schema
from millstream.spark.options import (
    ReadOptions,
    WriteOptions,
    parse_read_options,
    parse_write_options,
)
from millstream.spark.topic_values import TopicValues, find_values

# Spark starts a Python process for most steps of a query, and each imports this module. Imports
# that only some of them need are therefore inside functions.

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class MillstreamDataSource(DataSource):
    """Topics of a node or a data directory."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        """Return the columns for the options, including typed columns."""
        # Spark does not say here whether this is a stream; the columns are the same.
        is_table = is_being_created(self.options)
        given = check_table_options(self.options) if is_table else self.options
        options = parse_read_options(given, is_stream=False)
        columns = table_schema(
            include_headers=options.include_headers,
            columns=options.columns,
            typed=_typed(_values(options)),
        )
        return with_options(columns, self.options) if is_table else columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch. A user may give a `schema` with some of the columns."""
        from millstream.spark.read.batch_reader import BatchReader, PushdownReader  # noqa: PLC0415

        # If Spark's setting for filter pushdown is on, it plans in this worker module. If it is
        # off, Spark refuses a reader that has `pushFilters`.
        caller = sys._getframe(1).f_globals["__name__"]  # noqa: SLF001
        kind = PushdownReader if caller == _PUSHING_WORKER else BatchReader
        options = parse_read_options(options_to_read(self.options, schema), is_stream=False)
        return kind(options, _checked(options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from millstream.spark.read.failed_stream_reader import FailedStreamReader  # noqa: PLC0415
        from millstream.spark.read.stream_reader import StreamReader  # noqa: PLC0415

        try:
            options = parse_read_options(options_to_read(self.options, schema), is_stream=True)
            return StreamReader(options, _checked(options, schema), schema)
        except MillstreamError as error:
            return FailedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        from millstream.spark.write.writer import BatchWriter  # noqa: PLC0415

        return BatchWriter(self._to_write(schema), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        from millstream.spark.write.writer import StreamWriter  # noqa: PLC0415

        return StreamWriter(self._to_write(schema), schema, overwrite=overwrite)

    def _to_write(self, schema: StructType) -> WriteOptions:
        options, is_table = options_to_write(self.options, schema)
        return parse_write_options(options, is_table=is_table)


def _checked(options: ReadOptions, schema: StructType) -> TopicValues:
    """Check the columns of `schema`, and return the declarations of values.

    Topics are asked for their declarations only if the schema has columns that not every topic has.
    """
    if all(is_table_name(name) for name in schema.fieldNames()):
        check_schema(schema, TABLE)
        return TopicValues(options.value)
    values = _values(options)
    check_schema(schema, StructType([*TABLE, *_typed(values)]))
    return values


def _values(options: ReadOptions) -> TopicValues:
    from millstream.spark.read.plan import find_partitions  # noqa: PLC0415
    from millstream.spark.source_cache import open_source  # noqa: PLC0415

    source = open_source(options.source)
    topics = {partition.topic for partition in find_partitions(source, options.selection)}
    values = find_values(source, sorted(topics), options.value)
    if options.value.dead_letter_topic is not None and options.source.path is not None:
        raise InvalidConfig(
            "onBadRecord=deadLetter requires bootstrap.servers: dead letters cannot be written to"
            f" a data directory, got path {options.source.path!r}"
        )
    return values


def _typed(values: TopicValues) -> StructType:
    if not values.is_typed:
        return StructType([])
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    return from_arrow_schema(pa.schema(values.fields()))
