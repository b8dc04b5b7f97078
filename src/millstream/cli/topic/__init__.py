"""`millstream topic`."""
