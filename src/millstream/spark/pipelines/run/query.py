"""Streaming query of a target."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.errors import InvalidPipeline
from millstream.protocols.kafka.pipeline_client_id import pipeline_client_id
from millstream.spark.pipelines.definition.graph import read_by
from millstream.spark.pipelines.definition.pipeline import AVAILABLE_NOW, Pipeline
from millstream.spark.pipelines.definition.table import is_path, table_format
from millstream.spark.pipelines.definition.target import (
    FunctionTarget,
    TableTarget,
    Target,
    TopicTarget,
)
from millstream.spark.pipelines.run.records import as_records

_QUERY_ID = "sql.streaming.queryId"
"""Property with the query id, which Spark sets for the jobs of a batch."""


def rows_of(target: Target, views: dict[str, DataFrame]) -> DataFrame:
    """Return the rows of a target, in the form in which they are written."""
    rows = views[read_by(target)]
    if not rows.isStreaming:
        raise InvalidPipeline(
            f"targets.{target.name}.from must be a stream, got {read_by(target)!r}, which is not"
        )
    return as_records(rows, target) if isinstance(target, TopicTarget) else rows


def start_query(
    pipeline: Pipeline, target: Target, views: dict[str, DataFrame], *, is_once: bool
) -> StreamingQuery:
    """Start the query of a target from its checkpoint."""
    rows = rows_of(target, views)
    writer = (
        rows.writeStream.queryName(f"{pipeline.name}/{target.name}")
        .outputMode(target.mode)
        .option("checkpointLocation", pipeline.checkpoint_of(target))
    )
    if is_once or pipeline.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=pipeline.trigger)
    if isinstance(target, TopicTarget):
        return _to_topic(writer, pipeline, target)
    if isinstance(target, TableTarget):
        return _to_table(writer, pipeline, target)
    return _to_function(writer, target)


def _to_topic(writer: DataStreamWriter, pipeline: Pipeline, target: TopicTarget) -> StreamingQuery:
    """Write through the sink, which stores the batches of a query that it has published.

    Spark does not support update mode for sinks in Python. Those batches are written one by one,
    each under an id that the sink publishes once.
    """
    options = {
        **pipeline.node_options(),
        "topic": target.topic,
        "client.id": pipeline_client_id(pipeline.name, target.name),
        **target.options,
    }
    if target.mode == "append":
        return writer.format("millstream").options(**options).start()

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        assert query is not None, "Spark sets this property for every batch"
        sink = batch.write.format("millstream").options(**options)
        sink.options(jobId=query, jobSequence=number).mode("append").save()

    return writer.foreachBatch(write).start()


def _to_table(writer: DataStreamWriter, pipeline: Pipeline, target: TableTarget) -> StreamingQuery:
    format_ = table_format(target.table, target.format)
    path = pipeline.path(target.table) if is_path(target.table) else None
    if target.mode == "append":
        writer = writer.options(**target.options)
        if target.partition_by:
            writer = writer.partitionBy(*target.partition_by)
        if path is None:
            return writer.toTable(target.table)
        return writer.format(format_).start(path)

    def replace(batch: DataFrame, _: int) -> None:
        sink = batch.write.mode("overwrite").options(**target.options)
        sink = sink.partitionBy(*target.partition_by) if target.partition_by else sink
        if path is None:
            sink.saveAsTable(target.table)
        else:
            sink.format(format_).save(path)

    return writer.foreachBatch(replace).start()


def _to_function(writer: DataStreamWriter, target: FunctionTarget) -> StreamingQuery:
    return writer.foreachBatch(target.function).start()
