"""Durable streams: topics with one partition, and the state of their writers."""
