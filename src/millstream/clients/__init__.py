"""What speaks to a node from outside: over its Kafka door, batch by batch."""
