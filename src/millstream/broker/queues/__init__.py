"""Work queues: topics with a layer of leases."""
