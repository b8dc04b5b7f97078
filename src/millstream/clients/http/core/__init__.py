"""Decisions of the HTTP client, without I/O."""
