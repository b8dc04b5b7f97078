"""Topics as Spark tables: a data source, sinks, pipelines and jobs."""
