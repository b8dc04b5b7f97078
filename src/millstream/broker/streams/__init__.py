"""Durable streams: what has to be remembered beside the records of their topics."""
