"""Retention, deletion and the start of a log."""
