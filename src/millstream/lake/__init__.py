"""Topics as Delta tables in a lake: written exactly once, read together with the log."""
