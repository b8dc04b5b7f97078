"""Kafka client that reads and writes whole batches."""
