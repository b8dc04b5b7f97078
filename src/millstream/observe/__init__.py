"""Metrics, log events and telemetry of a node."""
