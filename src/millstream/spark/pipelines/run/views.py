"""Sources and steps as temporary views of Spark."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream.errors import InvalidPipeline
from millstream.formats.names import COLUMN_NAMES
from millstream.spark.pipelines.definition.graph import in_order
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.source import Source, TableSource, TopicSource, Watermark
from millstream.spark.pipelines.definition.step import SESSION, FunctionStep, Step
from millstream.spark.pipelines.definition.table import FILE_FORMATS, is_path, table_format
from millstream.spark.pipelines.run.cause import cause_of
from millstream.spark.pipelines.run.topic_table import read_topic_table


def make_views(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Register sources, then steps, as temporary views; return them by lower-case name.

    Nothing is executed yet. Raises `InvalidPipeline` with Spark's error.
    """
    views: dict[str, DataFrame] = {}
    for source in pipeline.sources:
        try:
            frame = _read(spark, pipeline, source)
            _add(views, source, _with_watermark(frame, source.watermark))
        except PySparkException as error:
            raise InvalidPipeline(f"sources.{source.name}: {cause_of(str(error))}") from error
    for step in in_order(pipeline.steps):
        try:
            frame = _compute(spark, step, views)
            _add(views, step, _with_watermark(frame, step.watermark))
        except PySparkException as error:
            raise InvalidPipeline(f"steps.{step.name}: {cause_of(str(error))}") from error
    return views


def _add(views: dict[str, DataFrame], part: Source | Step, frame: DataFrame) -> None:
    frame.createOrReplaceTempView(part.name)
    views[part.name.lower()] = frame


def _with_watermark(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    return frame.withWatermark(watermark.column, watermark.delay) if watermark else frame


def _compute(spark: SparkSession, step: Step, views: dict[str, DataFrame]) -> DataFrame:
    if not isinstance(step, FunctionStep):
        return spark.sql(step.sql)
    arguments = {
        name: spark if name == SESSION else views[name.lower()] for name in step.parameters
    }
    result = step.function(**arguments)
    if not isinstance(result, DataFrame):
        raise InvalidPipeline(f"steps.{step.name} must return a DataFrame, got {result!r}")
    return result


def _read(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    if isinstance(source, TopicSource):
        return _read_topic(spark, source, pipeline.node_options())
    return _read_table(spark, source, pipeline)


# Topics.


def topic_options(source: TopicSource, node: Mapping[str, str]) -> dict[str, str]:
    """Return the options of `format("millstream")` for a source."""
    bad_records = "deadLetter" if source.dead_letter else source.bad_records
    options = {
        "topic": source.topic,
        "startingOffsets": source.start,
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "valueFormat": source.format,
        "valueSchema": source.schema,
        "onBadRecord": bad_records if bad_records != "fail" else None,
        "deadLetterTopic": source.dead_letter,
        "maxRecordsPerTrigger": source.batch_records_max,
        "maxBytesPerTrigger": source.batch_bytes_max,
        "includeHeaders": "true" if "headers" in source.record_columns else None,
    }
    return {
        **node,
        **{name: str(value) for name, value in options.items() if value is not None},
        **source.options,
    }


def _read_topic(spark: SparkSession, source: TopicSource, node: Mapping[str, str]) -> DataFrame:
    options = topic_options(source, node)
    columns = spark.read.format("millstream").options(**options).load().columns
    if any(name not in COLUMN_NAMES for name in columns):
        # Columns that are not selected are not decoded.
        wanted = [
            name for name in columns if name not in COLUMN_NAMES or name in source.record_columns
        ]
        options["columns"] = ",".join(wanted)
    if not source.stream:
        return read_topic_table(spark, options)
    return spark.readStream.format("millstream").options(**options).load()


# Tables.


def _read_table(spark: SparkSession, source: TableSource, pipeline: Pipeline) -> DataFrame:
    reader = spark.readStream if source.stream else spark.read
    reader = reader.options(**source.options)
    if not is_path(source.table):
        return reader.table(source.table)
    path = pipeline.path(source.table)
    format_ = table_format(source.table, source.format)
    if source.schema:
        reader = reader.schema(source.schema)
    elif source.stream and format_ in FILE_FORMATS:
        # Spark does not infer the schema of a stream of files: infer it from the present files.
        present = spark.read.options(**source.options).format(format_).load(path)
        reader = reader.schema(present.schema)
    return reader.format(format_).load(path)
