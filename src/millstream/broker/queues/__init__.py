"""Work queues: topics whose records are leased to workers as jobs."""
