"""Prometheus metrics, one section per subsystem."""
