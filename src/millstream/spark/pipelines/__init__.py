"""Pipelines between topics and tables, defined in TOML or Python and run by Spark."""

from millstream.spark.pipelines.definition.load import load
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.source import TableSource, TopicSource, Watermark
from millstream.spark.pipelines.definition.step import FunctionStep, SqlStep, step
from millstream.spark.pipelines.definition.target import (
    FunctionTarget,
    TableTarget,
    TopicTarget,
    target,
)

__all__ = [
    "FunctionStep",
    "FunctionTarget",
    "Pipeline",
    "SqlStep",
    "TableSource",
    "TableTarget",
    "TopicSource",
    "TopicTarget",
    "Watermark",
    "load",
    "step",
    "target",
]
