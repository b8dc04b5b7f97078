"""Partitions as readers see them, wherever their replicas are."""
