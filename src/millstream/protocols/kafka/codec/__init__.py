"""Encoding and decoding of declared Kafka messages."""
