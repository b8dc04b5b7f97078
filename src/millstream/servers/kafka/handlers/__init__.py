"""Handlers of the Kafka APIs, in files named like their messages."""
