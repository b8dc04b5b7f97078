"""`millstream transactions`."""
