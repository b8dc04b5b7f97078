"""Where Spark looks for the format `millstream` by itself: installed is registered."""

from millstream.spark.source import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
