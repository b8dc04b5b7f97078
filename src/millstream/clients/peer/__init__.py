"""Connections to the other nodes of the cluster."""
