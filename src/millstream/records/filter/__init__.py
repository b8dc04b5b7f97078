"""Removing records from batches without re-encoding the ones that stay."""
