"""`millstream lake`."""
