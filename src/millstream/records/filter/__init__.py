"""Removal of records from batches, without re-encoding those that remain."""
