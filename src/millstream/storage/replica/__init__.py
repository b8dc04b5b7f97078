"""Replicas of a log: truncation, replication, and proof that two replicas are equal."""
