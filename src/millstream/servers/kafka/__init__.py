"""The Kafka server."""
