"""A client of the Kafka protocol that moves whole batches."""
