"""Avro values to and from Arrow columns."""
