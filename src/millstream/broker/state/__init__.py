"""Durable state of the broker: a keyed map and an event log, each kept in a log of its own."""
