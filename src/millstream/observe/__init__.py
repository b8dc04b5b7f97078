"""Metrics: named once, used everywhere."""
