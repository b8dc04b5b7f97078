"""`millstream access`."""
