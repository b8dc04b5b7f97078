"""Spark integration: data source, sinks, pipelines and maintenance jobs."""
