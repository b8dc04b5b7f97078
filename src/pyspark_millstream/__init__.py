"""Entry point through which Spark finds the format `millstream` if this package is installed."""

from millstream.spark.source import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
