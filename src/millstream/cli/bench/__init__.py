"""`millstream bench`."""
