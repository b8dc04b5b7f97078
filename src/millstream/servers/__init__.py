"""Network servers: Kafka and HTTP."""
