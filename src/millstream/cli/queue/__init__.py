"""`millstream queue`."""
