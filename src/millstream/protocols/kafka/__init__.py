"""The Kafka protocol as values and bytes."""
