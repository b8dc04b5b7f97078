"""Pipelines between topics and tables, described in TOML or in Python, run by Spark."""

from millstream.spark.pipelines.load import load
from millstream.spark.pipelines.pipeline import Pipeline
from millstream.spark.pipelines.source import TableSource, TopicSource, Watermark
from millstream.spark.pipelines.step import FunctionStep, SqlStep, step
from millstream.spark.pipelines.target import FunctionTarget, TableTarget, TopicTarget, target

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
