"""`millstream pipeline`."""
