"""Compiled loops shared by `records.arrow` and `records.filter`."""
