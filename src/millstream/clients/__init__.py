"""Clients of a node: the HTTP client, and a Kafka client that reads and writes whole batches."""
