"""Durable Streams over HTTP: `/v1/streams/{path}`."""
