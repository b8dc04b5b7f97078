"""Coordinators in a cluster: their internal partitions, and requests between them."""
