"""Appending exactly once, without I/O."""
